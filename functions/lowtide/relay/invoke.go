package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"

	"lowtide/shared/fn"
)

// path is where Lambda, and its emulators, take invocations.
const path = "/2015-03-31/functions/%s/invocations"

// client has no time-out of its own: a slow call that is given up and made again would be made twice. The context ends it.
var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true}}

// Lambda invokes functions on AWS, named prefix and the function's own name. Credentials are the machine's.
func Lambda(ctx context.Context, region, prefix, endpoint string) (Invoke, error) {
	cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
	if err != nil {
		return nil, fmt.Errorf("aws: %w", err)
	}
	if cfg.Region == "" {
		return nil, fmt.Errorf("aws: no region; give --region or set AWS_REGION")
	}
	if endpoint == "" {
		endpoint = "https://lambda." + cfg.Region + ".amazonaws.com"
		if strings.HasPrefix(cfg.Region, "cn-") {
			endpoint += ".cn"
		}
	}
	signer := v4.NewSigner()
	return func(ctx context.Context, function string, body []byte) ([]byte, error) {
		url := strings.TrimRight(endpoint, "/") + fmt.Sprintf(path, prefix+function)
		return post(ctx, url, body, func(req *http.Request) error {
			who, err := cfg.Credentials.Retrieve(ctx)
			if err != nil {
				return fmt.Errorf("%w: credentials: %w", fn.ErrPassing, err)
			}
			sum := sha256.Sum256(body)
			return signer.SignHTTP(ctx, who, req, hex.EncodeToString(sum[:]), "lambda", cfg.Region, time.Now())
		})
	}, nil
}

// Local invokes functions under emulators, by URL; others with next, which may be nil. An emulator takes one call at a
// time: the official one dies of two.
func Local(targets map[string]string, next Invoke) Invoke {
	slots := map[string]*sync.Mutex{}
	for name := range targets {
		slots[name] = &sync.Mutex{}
	}
	return func(ctx context.Context, function string, body []byte) ([]byte, error) {
		base, ok := targets[function]
		switch {
		case ok:
			slots[function].Lock()
			defer slots[function].Unlock()
			return post(ctx, strings.TrimRight(base, "/")+fmt.Sprintf(path, "function"), body, nil)
		case next != nil:
			return next(ctx, function, body)
		}
		return nil, fmt.Errorf("%w: nobody knows where %s is", fn.ErrPassing, function)
	}
}

// post makes one invocation. What keeps it from the function says nothing against its messages and is passing; what the
// function itself says is not.
func post(ctx context.Context, url string, body []byte, sign func(*http.Request) error) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if sign != nil {
		if err := sign(req); err != nil {
			return nil, err
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fn.ErrPassing, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	switch kind := resp.Header.Get("X-Amz-Function-Error"); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", fn.ErrPassing, err)
	case resp.StatusCode == http.StatusRequestEntityTooLarge:
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: status %d: %s", fn.ErrPassing, resp.StatusCode, short(answer))
	case kind != "":
		return nil, fmt.Errorf("%s: %s", kind, short(answer))
	}
	var failed struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	if json.Unmarshal(answer, &failed) == nil && failed.Type != "" {
		return nil, fmt.Errorf("%s: %s", failed.Type, failed.Message)
	}
	return answer, nil
}

func short(b []byte) string {
	if len(b) > 300 {
		b = b[:300]
	}
	return string(b)
}
