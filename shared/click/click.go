// Package click is a decision that a button or a link carries: what it would do, to which plan, until when, signed.
//
// It promises that what Open returns was signed with the secret for this fleet, and that a token fits behind the
// smallest button (64 bytes, Telegram's). It does not know whether the plan is still open, nor who clicks.
package click

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
)

// The acts.
const (
	Approve = "approve"
	Deny    = "deny"
)

// Click is one decision on one plan, as it was when the message was written.
type Click struct {
	Act     string
	Plan    string
	Hash    string // fleet.Plan.Hash
	Expires time.Time
}

// The errors of Open.
var (
	ErrForged = errors.New("the signature is not ours")
	ErrBroken = errors.New("not a decision of ours")
)

var letters = map[string]string{Approve: "y", Deny: "n"}

// Sign makes the token.
func (c Click) Sign(secret []byte, fleet string) string {
	head := strings.Join([]string{letters[c.Act], c.Plan, c.Hash, strconv.FormatInt(c.Expires.Unix(), 36)}, ".")
	return head + "." + sum(secret, fleet, head)
}

// Open reads a token and checks its signature. Whether it has expired is for the caller, who knows the time.
func Open(secret []byte, fleet, token string) (Click, error) {
	if len(secret) == 0 || len(token) > 200 {
		return Click{}, ErrBroken
	}
	p := strings.Split(token, ".")
	if len(p) != 5 {
		return Click{}, ErrBroken
	}
	if !hmac.Equal([]byte(sum(secret, fleet, strings.Join(p[:4], "."))), []byte(p[4])) {
		return Click{}, ErrForged
	}
	at, err := strconv.ParseInt(p[3], 36, 64)
	if err != nil {
		return Click{}, ErrBroken
	}
	c := Click{Plan: p[1], Hash: p[2], Expires: time.Unix(at, 0).UTC()}
	for act, letter := range letters {
		if letter == p[0] {
			c.Act = act
		}
	}
	if c.Act == "" {
		return Click{}, ErrBroken
	}
	return c, nil
}

func sum(secret []byte, fleet, head string) string {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(fleet + "\x00" + head))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}
