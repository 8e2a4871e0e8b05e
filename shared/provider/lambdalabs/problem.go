package lambdalabs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"lowtide/shared/provider"
)

// read takes an answer apart: its data into out, or an error of the closed list. buys says that it answers a launch.
func read(a provider.Answer, buys bool, out any) error {
	lost := provider.ErrUnavailable
	if buys {
		lost = provider.ErrUnknown
	}
	var said struct {
		Data  json.RawMessage `json:"data"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	bad := json.Unmarshal(a.Body, &said)
	if a.Status >= 300 || said.Error.Code != "" {
		is := meaning(a.Status, said.Error.Code, buys)
		if is == nil { // a redirect, or a failure in a success's clothes
			is = lost
		}
		return fmt.Errorf("%w (%s)", is, word(a.Status, said.Error.Code))
	}
	if bad == nil && (len(said.Data) == 0 || bytes.Equal(said.Data, []byte("null"))) {
		return fmt.Errorf("%w: an answer without data", lost)
	}
	if bad == nil {
		bad = json.Unmarshal(said.Data, out)
	}
	if bad != nil {
		return fmt.Errorf("%w: an answer that is not as described", lost)
	}
	return nil
}

var codes = regexp.MustCompile(`^[a-z][a-z0-9/-]{0,79}$`)

// word keeps what is printed short and free of what the vendor may repeat to us.
func word(status int, code string) string {
	if !codes.MatchString(code) {
		return fmt.Sprintf("status %d", status)
	}
	return fmt.Sprintf("%s, status %d", code, status)
}

// meaning maps a refusal by its code, which the vendor promises to keep; its message is not read. nil: neither the code nor
// the status tells.
func meaning(status int, code string, buys bool) error {
	switch {
	case status == 429:
		return provider.ErrThrottled
	case code == "instance-operations/launch/insufficient-capacity":
		return provider.ErrNoCapacity
	case code == "global/quota-exceeded":
		return provider.ErrQuota
	case code == "global/invalid-api-key", code == "global/account-inactive", code == "global/invalid-address", code == "global/forbidden":
		return provider.ErrDenied
	case code == "global/object-does-not-exist", code == "global/not-found":
		if buys { // a type, a region or a key that is not there
			return provider.ErrInvalid
		}
		return provider.ErrNotFound
	case code == "global/invalid-parameters", code == "instance-operations/launch/file-system-in-wrong-region":
		return provider.ErrInvalid
	case code == "global/internal-error", strings.HasPrefix(code, "provider/"):
		if buys { // whether it was made upstream is unverified: the list tells
			return provider.ErrUnknown
		}
		return provider.ErrUnavailable
	}
	return provider.Status(status, buys)
}
