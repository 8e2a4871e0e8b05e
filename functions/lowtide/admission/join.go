package admission

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Member is a machine's side: its key, and the user that it was given. Open makes it, Run gets and renews the user.
type Member struct {
	url    string
	client *http.Client
	ask    Ask
	key    nkeys.KeyPair

	mu    sync.Mutex
	grant Grant
}

// errNotYet says that no user was granted yet.
var errNotYet = errors.New("join: nobody has admitted this machine yet")

// Open makes a key, or takes the one that an earlier start kept in file. It asks nobody: an agent must go on where nobody
// answers.
func Open(url string, client *http.Client, file string, ask Ask) (*Member, error) {
	key, err := keyIn(file)
	if err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	m := &Member{url: url, client: client, ask: ask, key: key}
	if m.ask.Key, err = key.PublicKey(); err != nil {
		return nil, fmt.Errorf("join: %w", err)
	}
	return m, nil
}

// Join exchanges the token for a user. The token's time may be over for a machine that had joined: then its key is enough.
func (m *Member) Join(ctx context.Context) error {
	err := m.renew(ctx, true)
	if errors.Is(err, errRefused) {
		err = m.renew(ctx, false)
	}
	return err
}

// Run joins, and renews the user at half of its time, until ctx ends. While it is not answered, or refused, it asks again, at
// most each minute: the fleet may list the machine a little later than it boots. failed hears of each time.
func (m *Member) Run(ctx context.Context, failed func(error)) {
	wait := 100 * time.Millisecond
	for ctx.Err() == nil {
		next := wait
		if err := m.Join(ctx); err != nil {
			failed(err)
			wait = min(2*wait, time.Minute)
		} else {
			m.mu.Lock()
			next, wait = max(time.Until(m.grant.Expires)/2, time.Minute), time.Second
			m.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(next):
		}
	}
}

// User is the option of a connection as this machine: each attempt shows the newest user. Not nats.UserJWT, which asks for one
// at once and refuses the option if there is none yet.
func (m *Member) User() nats.Option {
	return func(o *nats.Options) error {
		o.UserJWT, o.SignatureCB, o.IgnoreAuthErrorAbort = m.JWT, m.Sign, true
		return nil
	}
}

// JWT is the newest user; an error if there is none yet.
func (m *Member) JWT() (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.grant.JWT == "" {
		return "", errNotYet
	}
	return m.grant.JWT, nil
}

// Sign answers the server's nonce.
func (m *Member) Sign(nonce []byte) ([]byte, error) { return m.key.Sign(nonce) }

func (m *Member) renew(ctx context.Context, join bool) error {
	a := m.ask
	a.At = time.Now().UTC()
	if !join {
		a.Token = ""
	}
	sig, err := m.key.Sign(a.Statement())
	if err != nil {
		return err
	}
	a.Proof = base64.StdEncoding.EncodeToString(sig)
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return fmt.Errorf("join %s: %w", m.url, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	switch {
	case err != nil:
		return fmt.Errorf("join %s: %w", m.url, err)
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("join %s: %w", m.url, errRefused)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("join %s: %s", m.url, resp.Status)
	}
	var g Grant
	if err := json.Unmarshal(answer, &g); err != nil || g.JWT == "" {
		return fmt.Errorf("join %s: no grant but %.100q", m.url, answer)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grant = g
	return nil
}

// keyIn reads a user's seed, or makes one and keeps it for its owner alone.
func keyIn(file string) (nkeys.KeyPair, error) {
	seed, err := os.ReadFile(file)
	if err == nil {
		return nkeys.FromSeed(seed)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	if seed, err = key.Seed(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	return key, os.WriteFile(file, seed, 0o600)
}
