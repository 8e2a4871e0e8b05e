package vast

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"lowtide/shared/provider"
)

// problem is a refusal in the market's words.
type problem struct {
	Word     string // "no_such_ask", "invalid_price", …
	Contract int64  // a machine that was made all the same
	is       error
}

func (p *problem) Error() string { return fmt.Sprintf("%v (%s)", p.is, p.Word) }
func (p *problem) Unwrap() error { return p.is }

func as(err error, p **problem) bool { return errors.As(err, p) }

// read takes an answer apart: into out, or into an error of the closed list. A success may be told in a failure's words.
func read(a provider.Answer, writes bool, out any) error {
	var said struct {
		Success  *bool  `json:"success"`
		Error    string `json:"error"`
		Msg      string `json:"msg"`
		Contract int64  `json:"new_contract"`
	}
	bad := json.Unmarshal(a.Body, &said)
	ok := a.Status < 300 && (said.Success == nil || *said.Success)
	if ok && bad == nil {
		if out == nil {
			return nil
		}
		bad = json.Unmarshal(a.Body, out)
	}
	if ok {
		if bad == nil {
			return nil
		}
		lost := provider.ErrUnavailable
		if writes {
			lost = provider.ErrUnknown
		}
		return fmt.Errorf("%w: an answer that is not JSON", lost)
	}
	return &problem{Word: word(a.Status, said.Error), Contract: said.Contract, is: meaning(a.Status, said.Error, said.Msg, writes)}
}

// word keeps what is printed short and free of what the market may repeat to us.
func word(status int, code string) string {
	if code == "" || len(code) > 40 || strings.ContainsAny(code, " \n\"") {
		return fmt.Sprintf("status %d", status)
	}
	return fmt.Sprintf("%s, status %d", code, status)
}

// meaning maps a refusal. The text is read only where the code does not tell.
func meaning(status int, code, msg string, writes bool) error {
	switch {
	case code == "no_such_ask", strings.Contains(msg, "no_such_ask"), code == "invalid_price":
		return provider.ErrNoCapacity
	case status == 411, strings.Contains(code, "credit"): // the balance is used up
		return provider.ErrDenied
	case code == "no_such_instance":
		return provider.ErrNotFound
	case strings.Contains(code, "limit_exceeded"), strings.Contains(code, "quota"):
		return provider.ErrQuota
	case status < 300: // a 200 that says no: busy
		return provider.ErrUnavailable
	}
	return provider.Status(status, writes)
}
