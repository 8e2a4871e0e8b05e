package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// panicCommand is the big red button.
func panicCommand() *cobra.Command {
	var o common
	var cloud, install string
	var real []string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "panic",
		Short: "Buy nothing any more, save and end every machine of ours; also from the cloud alone",
		Long: "Tells lowtide to buy nothing any more and to save, stop and end every machine of ours, and waits for it.\n" +
			"Where no lowtide answers, --cloud or --clouds, and --installation, end every machine with our labels at the cloud itself:\n" +
			"what was not durable by then is lost.\nTo go on: lowtide resume lets it buy again, and lowtide resume WORKLOAD ends a workload's pause.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cloud != "" {
				if install == "" {
					return usage(errors.New("--cloud needs --installation (the file of that name in the state directory): only machines that carry it are ours"))
				}
				c, err := dialCloud(cmd.Context(), cloud)
				if err != nil {
					return err
				}
				return endAll(cmd.Context(), cmd.OutOrStdout(), c, install, wait)
			}
			if len(real) > 0 {
				return endAtClouds(cmd.Context(), cmd.OutOrStdout(), real, install, wait)
			}
			return o.talk(cmd, func(c *client) error {
				return c.panic(cmd.Context(), cmd.OutOrStdout(), wait)
			})
		},
	}
	cmd.Flags().StringVar(&cloud, "cloud", "", "go to this cloud directly: URL of a fake cloud")
	cmd.Flags().StringSliceVar(&real, "clouds", nil, "go to these clouds directly: aws,vast, with their settings in the environment")
	cmd.Flags().StringVar(&install, "installation", "", "with --cloud or --clouds: the installation whose machines are ours")
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long to wait until nothing bills, in wall time")
	return o.on(cmd, false)
}

func (c *client) panic(ctx context.Context, out io.Writer, wait time.Duration) error {
	if err := c.say(ctx, events.PolicySet{Halt: "panic by " + user(), Stop: true, By: user()}); err != nil {
		return err
	}
	fmt.Fprintln(out, "nothing is bought any more; every workload saves and stops")
	began, told := time.Now(), ""
	for ; time.Since(began) < wait && ctx.Err() == nil; time.Sleep(300 * time.Millisecond) {
		f, err := c.fleet(ctx)
		if err != nil {
			return err
		}
		left := living(f)
		if len(left) == 0 && f.Halted != "" {
			fmt.Fprintf(out, "no machine of ours runs, %s after the call; lowtide resume lets it buy again, lowtide resume WORKLOAD ends each workload's pause\n", time.Since(began).Round(time.Second))
			return nil
		}
		if now := strings.Join(left, ", "); now != told && len(left) > 0 {
			told = now
			fmt.Fprintf(out, "%4s  still run: %s\n", time.Since(began).Round(time.Second), now)
		}
	}
	return failed("machines still run after %s: %s; see lowtide status, or use --cloud", time.Since(began).Round(time.Second), told)
}

// living names the machines that bill, each with what it is at.
func living(f *fleet.Fleet) (all []string) {
	for _, name := range fleet.Sorted(f.Machines) {
		if m := f.Machines[name]; m.Phase != fleet.Ended && !proposed(f, m) {
			all = append(all, fmt.Sprintf("%s (%s)", name, m.Phase))
		}
	}
	return all
}

// endAll ends all that carries our installation's label, and waits until the cloud has listed none of it for as long as a
// machine that was just bought may be missing from its list.
func endAll(ctx context.Context, out io.Writer, cloud provider.Provider, install string, wait time.Duration) error {
	deadline, late := time.Now().Add(wait), cloud.Traits().ListingDelay
	var empty time.Time // since when each whole list held nothing of ours
	for ; ctx.Err() == nil; time.Sleep(300 * time.Millisecond) {
		asked := time.Now()
		all, err := cloud.List(ctx)
		left := 0
		for _, m := range all {
			if m.Labels.Install != install || m.State == provider.Gone {
				continue
			}
			left++
			if m.State == provider.Ending {
				continue
			}
			if err := cloud.End(ctx, m.ID); err != nil {
				fmt.Fprintf(out, "%s (%s): %v; tried again\n", m.Labels.Machine, m.ID, err)
				continue
			}
			fmt.Fprintf(out, "%s (%s) is told to end\n", m.Labels.Machine, m.ID)
		}
		switch {
		case err != nil || left > 0:
			empty = time.Time{}
		case empty.IsZero():
			empty = asked
			if late > 0 {
				fmt.Fprintf(out, "nothing of ours is listed; looking on for %s, which a purchase may take to be listed\n", late)
			}
		}
		switch {
		case !empty.IsZero() && asked.Sub(empty) >= late:
			fmt.Fprintln(out, "no machine of ours runs")
			return nil
		case time.Now().Before(deadline):
		case err != nil:
			return nobody(err)
		case left > 0:
			return failed("%s still run after %s", counted(left, "machine", "machines"), wait)
		default:
			return failed("no machine of ours is listed, but one that was just bought may not be yet (%s): do the same again", late)
		}
	}
	return ctx.Err()
}
