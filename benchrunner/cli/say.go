package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"lowtide/benchrunner/suite"
	"lowtide/events"
	"lowtide/shared/bus"
)

// saying is where a result goes besides the eyes of whoever started the program.
type saying struct {
	json, event          bool
	nats, fleet, machine string
}

func (s *saying) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&s.json, "json", false, "print the result as JSON")
	f.BoolVar(&s.event, "event", false, "print the fact benchmark.finished, one line of JSON, as an agent reads it")
	f.StringVar(&s.nats, "nats", "", "publish benchmark.finished at this NATS server too; its token is read from $"+envToken)
	f.StringVar(&s.fleet, "fleet", "", "fleet of the machine (default $"+envFleet+")")
	f.StringVar(&s.machine, "machine", "", "lowtide's name of the machine (default $"+envMachine+")")
	cmd.MarkFlagsMutuallyExclusive("json", "event")
}

// check completes the names from the environment, before minutes are spent on measuring.
func (s *saying) check() error {
	s.fleet, s.machine = cmp.Or(s.fleet, os.Getenv(envFleet)), cmp.Or(s.machine, os.Getenv(envMachine))
	if s.nats != "" && (s.fleet == "" || s.machine == "") {
		return fmt.Errorf("--nats: a fact needs --fleet and --machine, or $%s and $%s", envFleet, envMachine)
	}
	s.fleet = cmp.Or(s.fleet, "local") // printed only: whoever reads it knows its fleet
	return nil
}

// say prints the result, then publishes it: what cannot be published is not lost.
func (s *saying) say(ctx context.Context, out io.Writer, r suite.Result) error {
	e := events.New(s.fleet, "benchrunner/"+s.machine, time.Now(), r.Fact(s.machine))
	switch {
	case s.event:
		line, err := events.Encode(e)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
			return err
		}
	case s.json:
		if err := encode(out, r); err != nil {
			return err
		}
	default:
		if err := r.Report(out); err != nil {
			return err
		}
	}
	if s.nats == "" {
		return nil
	}
	return publish(ctx, s.nats, e)
}

// publishing is how long a server may be away.
const publishing = 30 * time.Second

func publish(ctx context.Context, server string, e events.Event) error {
	ctx, cancel := context.WithTimeout(ctx, publishing)
	defer cancel()
	nc, err := nats.Connect(server, append(bus.Options("benchrunner", nil), nats.Token(os.Getenv(envToken)))...)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	js, err := bus.JetStream(nc)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if _, err := bus.Publish(ctx, js, e); err != nil {
		return fmt.Errorf("benchmark.finished was measured and not published: %w", err)
	}
	return nil
}
