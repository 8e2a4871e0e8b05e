package notices

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lowtide/events"
)

// maxHook is the largest webhook: as base64 it must fit into an event.
const maxHook = 180 << 10

// hookAge is how old a signed webhook may be; Vast's own rule.
const hookAge = 5 * time.Minute

// The errors of Door.Take.
var (
	ErrNoDoor   = errors.New("no such webhook")
	ErrUnsigned = errors.New("not signed as agreed")
	ErrTooLarge = errors.New("too large")
)

// Door takes in clouds' webhooks and says notice.received with the bytes as they came, once it knows who sent them.
type Door struct {
	fleet   string
	secrets map[string]string // by cloud
	now     func() time.Time
}

// NewDoor makes a door for the clouds of secrets: "<cloud> <secret>" a line. Without a secret a cloud's webhook is refused.
func NewDoor(fleet, secrets string, now func() time.Time) (*Door, error) {
	d := &Door{fleet, map[string]string{}, now}
	for i, line := range strings.Split(secrets, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		cloud, secret, _ := strings.Cut(line, " ")
		if secret = strings.TrimSpace(secret); len(secret) < 16 {
			return nil, fmt.Errorf("line %d: want <cloud> <secret>, the secret 16 characters at least", i+1)
		}
		d.secrets[cloud] = secret
	}
	return d, nil
}

// Take checks one webhook. header gives a header's value by its name in lower case.
//
//	vast    x-vast-signature-256: sha256=HMAC-SHA256(secret, x-vast-timestamp + "." + body)
//	others  authorization: Bearer <secret>, as most clouds' event services can send
func (d *Door) Take(cloud string, header func(string) string, body []byte) ([]events.Event, error) {
	secret, ok := d.secrets[cloud]
	switch {
	case !ok:
		return nil, ErrNoDoor
	case len(body) > maxHook:
		return nil, ErrTooLarge
	case cloud == "vast" && !d.vast(secret, header, body),
		cloud != "vast" && subtle.ConstantTimeCompare([]byte(header("authorization")), []byte("Bearer "+secret)) != 1:
		return nil, ErrUnsigned
	}
	return []events.Event{events.New(d.fleet, "notices", d.now(), events.NoticeReceived{Cloud: cloud, Body: body})}, nil
}

func (d *Door) vast(secret string, header func(string) string, body []byte) bool {
	at := header("x-vast-timestamp")
	sec, err := strconv.ParseFloat(at, 64)
	if err != nil || d.now().Sub(seconds(sec)).Abs() > hookAge {
		return false
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(at + "."))
	mac.Write(body)
	return hmac.Equal([]byte(header("x-vast-signature-256")), []byte("sha256="+hex.EncodeToString(mac.Sum(nil))))
}
