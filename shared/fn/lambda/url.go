package lambda

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Request is one request to a function's URL. Header names are in lower case.
type Request struct {
	Method string
	Path   string
	Query  string // as it came
	Header map[string]string
	Body   []byte // as it was sent: signatures are over these bytes
}

// Response is the answer. Status 0 is 200.
type Response struct {
	Status int
	Header map[string]string
	Body   string
}

// urlRequest is payload format 2.0 of function URLs.
type urlRequest struct {
	RawPath        string            `json:"rawPath"`
	RawQuery       string            `json:"rawQueryString"`
	Headers        map[string]string `json:"headers"`
	Body           string            `json:"body"`
	Base64         bool              `json:"isBase64Encoded"`
	RequestContext struct {
		HTTP struct {
			Method string `json:"method"`
		} `json:"http"`
	} `json:"requestContext"`
}

type urlResponse struct {
	Status  int               `json:"statusCode"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body"`
}

// url handles one request. An error is the caller's to repeat, and tells nothing about the inside.
func (h *Host) url(ctx context.Context, handlers *Handlers, payload []byte, r *report) ([]byte, error) {
	if handlers.URL == nil {
		return nil, fmt.Errorf("%s has no URL", h.name)
	}
	var in urlRequest
	if err := json.Unmarshal(payload, &in); err != nil {
		return nil, fmt.Errorf("url: %w", err)
	}
	req := Request{Method: in.RequestContext.HTTP.Method, Path: in.RawPath, Query: in.RawQuery, Header: map[string]string{}, Body: []byte(in.Body)}
	for k, v := range in.Headers {
		req.Header[strings.ToLower(k)] = v
	}
	if in.Base64 {
		body, err := base64.StdEncoding.DecodeString(in.Body)
		if err != nil {
			return json.Marshal(urlResponse{Status: http.StatusBadRequest, Body: "the body is not base64\n"})
		}
		req.Body = body
	}
	out, said, err := handlers.URL(ctx, req)
	if err == nil {
		err = h.say(ctx, said, r)
	}
	if err != nil {
		r.Failed++
		h.log.Warn("url", "err", err, "path", req.Path)
		return json.Marshal(urlResponse{Status: http.StatusServiceUnavailable, Body: "not taken; send it again\n"})
	}
	r.Handled++
	if out.Status == 0 {
		out.Status = http.StatusOK
	}
	return json.Marshal(urlResponse{out.Status, out.Header, out.Body})
}
