package provider

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Codes sorts a cloud's words for its refusals into the closed list. A code that ends in "*" stands for all that begin
// so; one that begins with it too, for all that hold it. The first row that fits counts.
type Codes []struct {
	Is    error
	Codes []string
}

// Of is the closed list's error for a code; nil for one that is in no row.
func (c Codes) Of(code string) error {
	for _, row := range c {
		if slices.ContainsFunc(row.Codes, func(known string) bool { return fits(known, code) }) {
			return row.Is
		}
	}
	return nil
}

func fits(known, code string) bool {
	begin, open := strings.CutSuffix(known, "*")
	if !open {
		return known == code
	}
	if within, any := strings.CutPrefix(begin, "*"); any {
		return strings.Contains(code, within)
	}
	return strings.HasPrefix(code, begin)
}

// Problem is a refusal in a cloud's words. Of these only the code is printed: texts may repeat secrets.
type Problem struct {
	Code string
	Is   error  // of the closed list
	Hint string // how a person mends it; ""
	Time bool   // the request's time may be the reason
}

func (p *Problem) Error() string {
	if p.Hint != "" {
		return fmt.Sprintf("%v (%s): %s", p.Is, p.Code, p.Hint)
	}
	return fmt.Sprintf("%v (%s)", p.Is, p.Code)
}

func (p *Problem) Unwrap() error { return p.Is }

// Refusal is the problem that a status and a code tell: what the code means, else what the status does. A code that is no
// word is not repeated. Neither telling, as in a redirect, it is what a lost answer is.
func (c Codes) Refusal(status int, code string, writes bool) *Problem {
	p := &Problem{Code: code, Is: Status(status, writes)}
	if code == "" || len(code) > 80 || strings.ContainsAny(code, " \n\"") {
		p.Code = fmt.Sprintf("status %d", status)
	} else if is := c.Of(code); is != nil {
		p.Is = is
	}
	if p.Is == nil {
		p.Is = Lost(writes)
	}
	return p
}

// Lost is the error of an answer that cannot be read: ErrUnknown where the request may have changed something.
func Lost(writes bool) error {
	if writes {
		return ErrUnknown
	}
	return ErrUnavailable
}

// Tried reads the answer to a trial of a purchase: a refusal with the code that says it would have gone through is none. A cloud
// that took the trial for an order is ErrUnknown.
func Tried(err error, code string) error {
	var p *Problem
	switch {
	case errors.As(err, &p) && p.Code == code:
		return nil
	case err == nil:
		return fmt.Errorf("%w: it took a trial for more than one", ErrUnknown)
	}
	return err
}
