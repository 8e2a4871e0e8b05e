package paperspace

import (
	"encoding/json"
	"strings"

	"lowtide/shared/provider"
)

// codes sorts the vendor's codes; "BAD_REQUEST" is too many things to be here.
var codes = provider.Codes{
	{Is: provider.ErrThrottled, Codes: []string{"TOO_MANY_REQUESTS"}},
	{Is: provider.ErrDenied, Codes: []string{"UNAUTHORIZED", "FORBIDDEN", "PAYMENT_REQUIRED"}},
	{Is: provider.ErrNotFound, Codes: []string{"NOT_FOUND"}},
	{Is: provider.ErrInvalid, Codes: []string{"PARSE_ERROR", "PAYLOAD_TOO_LARGE", "METHOD_NOT_SUPPORTED", "UNPROCESSABLE_CONTENT"}},
}

// explain reads a refusal. Of a BAD_REQUEST the text is read, since the code is the same for all: a lack of capacity is
// the vendor's own sentence, the others are guesses (unverified). It is never printed.
func explain(a provider.Answer, buys bool) error {
	var said struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	if json.Unmarshal(a.Body, &said) != nil {
		said.Code = ""
	}
	p := codes.Refusal(a.Status, said.Code, buys)
	text := strings.ToLower(said.Message)
	switch {
	case said.Code != "BAD_REQUEST" && said.Code != "CONFLICT" && said.Code != "PRECONDITION_FAILED":
	case strings.Contains(text, "out of capacity"), strings.Contains(text, "not available"):
		p.Is = provider.ErrNoCapacity
	case strings.Contains(text, "limit"), strings.Contains(text, "quota"):
		p.Is = provider.ErrQuota
	case strings.Contains(text, "payment"), strings.Contains(text, "billing"):
		p.Is = provider.ErrDenied
	}
	return p
}
