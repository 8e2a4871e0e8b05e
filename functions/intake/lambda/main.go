// Command lambda is intake on AWS: whoever may invoke its URL (AWS_IAM) posts a workload file to it, and the relay hands it
// the files that rules ask for.
package main

import (
	"context"
	"errors"
	"net/http"
	"os"

	"lowtide/events"
	"lowtide/functions/intake"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("intake", func(_ context.Context, h *lambda.Host) (lambda.Handlers, error) {
		return lambda.Handlers{Function: intake.Function(), URL: func(_ context.Context, r lambda.Request) (lambda.Response, []events.Event, error) {
			if r.Method != http.MethodPost {
				return lambda.Response{Status: http.StatusMethodNotAllowed, Body: "post a workload file\n"}, nil, nil
			}
			now := h.Clock.Now()
			asked, err := intake.Parse("workload", r.Body, now)
			if err == nil && asked.Workdir != "" {
				err = errors.New("workload: field workdir: there is no directory at this door; lowtide submit packs it")
			}
			if err == nil {
				err = asked.At(os.Getenv("LOWTIDE_AGENT_BUCKET"))
			}
			if err != nil {
				return lambda.Response{Status: http.StatusBadRequest, Body: err.Error() + "\n"}, nil, nil
			}
			spec := asked.Spec
			said := events.New(h.Fleet, "intake", now, events.WorkloadSubmitted{Spec: spec})
			return lambda.Response{Status: http.StatusAccepted, Body: spec.Name + ": submitted\n"}, []events.Event{said}, nil
		}}, nil
	})
}
