// Command lambda is notices on AWS: EventBridge hands it warnings directly, clouds' webhooks come to its URL, and what
// they said comes back to it from the stream.
package main

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"lowtide/events"
	"lowtide/functions/notices"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("notices", func(_ context.Context, h *lambda.Host) (lambda.Handlers, error) {
		n := notices.New([]string{h.Fleet}, notices.Options{Now: h.Clock.Now, Accounts: h.AccountNames()})
		return lambda.Handlers{Function: n.Function(), Direct: n.Direct, URL: hooks(h)}, nil
	})
}

// hooks serves POST /<cloud>. Its secrets are read by each request: there are few, one that was rotated counts at once, and a
// deployment without webhooks has none to read.
func hooks(h *lambda.Host) func(context.Context, lambda.Request) (lambda.Response, []events.Event, error) {
	return func(ctx context.Context, r lambda.Request) (lambda.Response, []events.Event, error) {
		if r.Method != http.MethodPost {
			return lambda.Response{Status: http.StatusMethodNotAllowed}, nil, nil
		}
		secrets, err := h.Setting(ctx, "LOWTIDE_WEBHOOKS")
		if err != nil {
			return lambda.Response{}, nil, err
		}
		door, err := notices.NewDoor(h.Fleet, secrets, h.Clock.Now)
		if err != nil {
			return lambda.Response{}, nil, err
		}
		said, err := door.Take(strings.Trim(r.Path, "/"), func(name string) string { return r.Header[name] }, r.Body)
		switch {
		case errors.Is(err, notices.ErrNoDoor):
			return lambda.Response{Status: http.StatusNotFound}, nil, nil
		case errors.Is(err, notices.ErrTooLarge):
			return lambda.Response{Status: http.StatusRequestEntityTooLarge}, nil, nil
		case err != nil:
			return lambda.Response{Status: http.StatusForbidden}, nil, nil
		}
		return lambda.Response{Status: http.StatusAccepted}, said, nil
	}
}
