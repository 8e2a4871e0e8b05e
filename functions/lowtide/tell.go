package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/notify"
	"lowtide/functions/notify/settings"
)

// notifyCommand proves that every channel of a file works: a channel that nobody tried is silent when it counts.
func notifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "notify FILE",
		Short: "Send a test message to every channel of a notify file, and say which of them work",
		Args:  needs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := settings.Read(args[0], settings.Options{Env: os.LookupEnv})
			if err != nil {
				return usage(err)
			}
			bad := 0
			for _, p := range s.Places {
				err := try(cmd.Context(), s.Words, p)
				if err != nil {
					bad++
					fmt.Fprintf(cmd.OutOrStdout(), "%s: does not work: %v\n", p.Name, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: works\n", p.Name)
			}
			switch {
			case len(s.Places) == 0:
				return usage(errors.New(args[0] + ": no channels in it"))
			case bad > 0:
				return failed("%d of %d channels do not work", bad, len(s.Places))
			}
			return nil
		},
	}
}

func try(ctx context.Context, w *notify.Words, p notify.Place) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	now := time.Now()
	zone := p.Route.Zone
	if zone == nil {
		zone = time.UTC
	}
	m := notify.Message{
		ID: fmt.Sprintf("test/%d", now.Unix()), Version: 1, Kind: "test", Closed: true, Title: w.Text(p.Route.Language, zone, "test", p.Name)[0],
		Fleet: "test", Opened: now, Changed: now, Language: p.Route.Language,
	}
	_, err := p.Channel.Send(ctx, m, "")
	return err
}
