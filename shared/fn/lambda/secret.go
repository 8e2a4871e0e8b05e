package lambda

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// credentials are a NATS user's, read when the server first asks and again when a connection is made later, so that a
// rotated secret is found without a deployment.
type credentials struct {
	read func(context.Context) ([]byte, error)

	mu   sync.Mutex
	last []byte
	at   time.Time
}

// cached is how long a secret is not read again: a burst of reconnects must not become a burst of calls.
const cached = 30 * time.Second

func (c *credentials) get() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil && time.Now().Round(0).Sub(c.at) < cached {
		return c.last, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	b, err := c.read(ctx)
	if err != nil {
		if c.last != nil {
			return c.last, nil // the old one may still do
		}
		return nil, fmt.Errorf("read the NATS credentials: %w", err)
	}
	c.last, c.at = b, time.Now().Round(0)
	return b, nil
}

func (c *credentials) jwt() (string, error) {
	b, err := c.get()
	if err != nil {
		return "", err
	}
	return nkeys.ParseDecoratedJWT(b)
}

func (c *credentials) sign(nonce []byte) ([]byte, error) {
	b, err := c.get()
	if err != nil {
		return nil, err
	}
	key, err := nkeys.ParseDecoratedNKey(b)
	if err != nil {
		return nil, err
	}
	defer key.Wipe()
	return key.Sign(nonce)
}

var (
	_ nats.UserJWTHandler   = (*credentials)(nil).jwt
	_ nats.SignatureHandler = (*credentials)(nil).sign
)

// secretReader reads a secret of Secrets Manager, by its ARN or name, or a parameter of Systems Manager, whose name begins
// with '/' or whose ARN says ssm. It signs one request by itself: the SDK's clients for the two would double the size
// and the start of a small function.
func secretReader(name string, getenv func(string) string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		service, target, body := "secretsmanager", "secretsmanager.GetSecretValue", map[string]any{"SecretId": name}
		if strings.HasPrefix(name, "/") || strings.Contains(name, ":ssm:") {
			service, target, body = "ssm", "AmazonSSM.GetParameter", map[string]any{"Name": name, "WithDecryption": true}
		}
		payload, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		answer, err := call(ctx, service, target, payload, getenv)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", target, name, err)
		}
		var got struct {
			SecretString string
			Parameter    struct{ Value string }
		}
		if err := json.Unmarshal(answer, &got); err != nil {
			return nil, fmt.Errorf("%s %s: %w", target, name, err)
		}
		if got.SecretString+got.Parameter.Value == "" {
			return nil, fmt.Errorf("%s %s: it holds no text", target, name)
		}
		return []byte(got.SecretString + got.Parameter.Value), nil
	}
}

// call makes one request in AWS's JSON protocol. The clock of an environment that was just thawed may be behind: a
// refusal is tried once more with the time that the answer names.
func call(ctx context.Context, service, target string, payload []byte, getenv func(string) string) ([]byte, error) {
	at := time.Now()
	for try := 1; ; try++ {
		status, date, answer, err := send(ctx, service, target, payload, at, getenv)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK:
			return answer, nil
		case try > 1 || date.IsZero() || date.Sub(at).Abs() < 5*time.Second:
			if len(answer) > 300 {
				answer = answer[:300]
			}
			return nil, fmt.Errorf("status %d: %s", status, answer)
		}
		at = date
	}
}

func send(ctx context.Context, service, target string, payload []byte, at time.Time, getenv func(string) string) (int, time.Time, []byte, error) {
	region := getenv("AWS_REGION")
	if region == "" {
		return 0, time.Time{}, nil, errors.New("AWS_REGION is not set")
	}
	domain := "amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		domain = "amazonaws.com.cn"
	}
	url := "https://" + service + "." + region + "." + domain + "/"
	if own := getenv("AWS_ENDPOINT_URL"); own != "" {
		url = strings.TrimRight(own, "/") + "/"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return 0, time.Time{}, nil, err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", target)
	sum := sha256.Sum256(payload)
	who := aws.Credentials{
		AccessKeyID: getenv("AWS_ACCESS_KEY_ID"), SecretAccessKey: getenv("AWS_SECRET_ACCESS_KEY"), SessionToken: getenv("AWS_SESSION_TOKEN"),
	}
	if err := v4.NewSigner().SignHTTP(ctx, who, req, hex.EncodeToString(sum[:]), service, region, at); err != nil {
		return 0, time.Time{}, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, time.Time{}, nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	date, _ := http.ParseTime(resp.Header.Get("Date"))
	return resp.StatusCode, date, answer, err
}
