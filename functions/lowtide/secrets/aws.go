package secrets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/config"

	"lowtide/shared/fleet"
)

// AWS reads Secrets Manager and Systems Manager with the credentials and the region that the AWS SDK finds; an ARN brings
// its own region. It signs one request by itself: the SDK's two clients would bring two modules for two calls.
type AWS struct {
	once sync.Once
	cfg  aws.Config
	err  error
}

// read reads a secret. AWS's own word on what failed is passed on: it names the secret and the action, not the value.
func (a *AWS) read(ctx context.Context, kind, name string) (string, error) {
	if a == nil {
		return "", fmt.Errorf("%w: references to AWS are not served here", ErrRefused)
	}
	a.once.Do(func() { a.cfg, a.err = config.LoadDefaultConfig(context.WithoutCancel(ctx)) })
	if a.err != nil {
		return "", a.err
	}
	name, key, _ := strings.Cut(name, "#")
	service, target, question := "secretsmanager", "secretsmanager.GetSecretValue", map[string]any{"SecretId": name}
	if kind == fleet.SecretSSM {
		service, target, question = "ssm", "AmazonSSM.GetParameter", map[string]any{"Name": name, "WithDecryption": true}
	}
	region := a.cfg.Region
	if parts := strings.Split(name, ":"); parts[0] == "arn" && len(parts) > 4 {
		region = parts[3]
	}
	if region == "" {
		return "", fmt.Errorf("%w: no region: set AWS_REGION where lowtide runs, or name the secret by its ARN", ErrRefused)
	}
	b, err := a.call(ctx, service, region, target, question)
	if err != nil {
		return "", err
	}
	var got struct {
		SecretString string
		Parameter    struct{ Value string }
	}
	if json.Unmarshal(b, &got) != nil || got.SecretString+got.Parameter.Value == "" {
		return "", fmt.Errorf("%w: it holds no text", ErrRefused)
	}
	if key != "" {
		return field(got.SecretString+got.Parameter.Value, key)
	}
	return got.SecretString + got.Parameter.Value, nil
}

// host is a service's address; AWS_ENDPOINT_URL is another one for all.
func host(service, region string) string {
	if own := os.Getenv("AWS_ENDPOINT_URL"); own != "" {
		return strings.TrimRight(own, "/") + "/"
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		domain = "amazonaws.com.cn"
	}
	return "https://" + service + "." + region + "." + domain + "/"
}

func (a *AWS) call(ctx context.Context, service, region, target string, question any) ([]byte, error) {
	payload, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	if a.cfg.Credentials == nil {
		return nil, fmt.Errorf("%w: no AWS credentials where lowtide runs", ErrRefused)
	}
	who, err := a.cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: AWS credentials: %w", target, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, host(service, region), bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", target)
	sum := sha256.Sum256(payload)
	if err := v4.NewSigner().SignHTTP(ctx, who, req, hex.EncodeToString(sum[:]), service, region, time.Now()); err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", target, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode == http.StatusOK {
		return b, err
	}
	return nil, problem(target, resp.StatusCode, b)
}

// problem reads AWS's word. 400 with anything but a throttle is for good.
func problem(target string, status int, b []byte) error {
	var said struct {
		Type    string `json:"__type"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(b, &said) // then only the status is told
	kind := said.Type[strings.LastIndexByte(said.Type, '#')+1:]
	err := fmt.Errorf("%s: status %d %s %s", target, status, kind, said.Message)
	if status >= 500 || strings.Contains(kind, "Throttl") || strings.Contains(kind, "TooManyRequests") {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}
