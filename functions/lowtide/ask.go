package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/intake"
	"lowtide/shared/fleet"
)

// What people ask of a workload that is there: pause, resume, stop, change.

func pauseCommand() *cobra.Command {
	return word{
		name: "pause", short: "Save and stop a workload; nothing is bought for it until it is resumed",
		fact: func(w string) events.Fact { return events.WorkloadPaused{Workload: w, By: user()} },
		then: func(w *fleet.Workload) string {
			return "it is asked to save at its next step, and its machine is ended; " + goesOn(w, "lowtide resume goes on from there")
		},
	}.command()
}

func resumeCommand() *cobra.Command {
	cmd := word{
		name: "resume", short: "End a pause; without a workload, let lowtide buy again after a panic or an alarm",
		fact: func(w string) events.Fact { return events.WorkloadResumed{Workload: w, By: user()} },
		then: func(w *fleet.Workload) string { return goesOn(w, fmt.Sprintf("it goes on from step %d", w.Saved.Step)) },
	}.command()
	cmd.Use, cmd.Args = "resume [WORKLOAD]", cobra.MaximumNArgs(1)
	return cmd
}

func stopCommand() *cobra.Command {
	return word{
		name: "stop", short: "Save, stop and end a workload for good; its checkpoints are kept",
		fact: func(w string) events.Fact { return events.WorkloadWithdrawn{Workload: w, By: user()} },
		then: func(*fleet.Workload) string {
			return "it saves, stops and is withdrawn; lowtide checkpoints prune removes what it saved"
		},
	}.command()
}

func keepCommand() *cobra.Command {
	return word{
		name: "keep", short: "Leave a workload as it is for a day, however idle it is",
		fact: func(w string) events.Fact { return events.WorkloadKept{Workload: w, By: user()} },
		then: func(*fleet.Workload) string { return "it is left as it is for a day, however idle it is" },
	}.command()
}

// goesOn is what a checkpoint promises; without one, what that means.
func goesOn(w *fleet.Workload, then string) string {
	if w.Saved.ID == "" {
		return "no checkpoint of it is durable yet: if it makes none, it begins anew"
	}
	return then
}

// word is a command that says one thing about one workload that is not over.
type word struct {
	name, short string
	fact        func(workload string) events.Fact
	then        func(*fleet.Workload) string // what comes of it
}

func (x word) command() *cobra.Command {
	var o common
	cmd := &cobra.Command{
		Use: x.name + " WORKLOAD", Short: x.short, Args: needs("WORKLOAD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.talk(cmd, func(c *client) error {
				f, err := c.fleet(cmd.Context())
				if err != nil {
					return err
				}
				if len(args) == 0 {
					return c.lift(cmd, f)
				}
				if err := open(f, args[0]); err != nil {
					return err
				}
				if err := c.say(cmd.Context(), x.fact(args[0])); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", args[0], x.then(f.Workloads[args[0]]))
				return nil
			})
		},
	}
	return o.on(cmd, false)
}

// open says why nothing can be asked of a workload any more.
func open(f *fleet.Fleet, name string) error {
	switch w := f.Workloads[name]; {
	case w == nil:
		return failed("there is no workload %q; there are: %s", name, strings.Join(names(f), ", "))
	case w.Phase.Final():
		return failed("%s is %s already: there is nothing to do", name, w.Phase)
	}
	return nil
}

// lift ends a halt of all purchases.
func (c *client) lift(cmd *cobra.Command, f *fleet.Fleet) error {
	if f.Halted == "" {
		return failed("purchases are not halted; name a workload to resume: lowtide status lists them")
	}
	if err := c.say(cmd.Context(), events.PolicySet{By: user()}); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "lowtide may buy again; it was halted: %s\n", f.Halted)
	return nil
}

// names lists the workloads, for whoever asked for one that is not there.
func names(f *fleet.Fleet) []string {
	if len(f.Workloads) == 0 {
		return []string{"none"}
	}
	return fleet.Sorted(f.Workloads)
}

func changeCommand() *cobra.Command {
	var o common
	var autonomy, deadline, budget string
	cmd := &cobra.Command{
		Use: "change WORKLOAD", Short: "Another autonomy, deadline or budget for a workload; a deadline that cannot be kept is refused", Args: needs("WORKLOAD"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.talk(cmd, func(c *client) error {
				e, err := intake.Change(args[0], intake.Changes{Autonomy: autonomy, Deadline: deadline, Budget: budget}, c.clock.Now())
				if err != nil {
					return usage(err)
				}
				return c.change(cmd, e)
			})
		},
	}
	cmd.Flags().StringVar(&autonomy, "autonomy", "", "observe, suggest or act")
	cmd.Flags().StringVar(&deadline, "deadline", "", "from now, or a time, as in the workload file")
	cmd.Flags().StringVar(&budget, "budget", "", "as in the workload file")
	return o.on(cmd, false)
}

// change says a change and waits until the fleet has it, or has refused it.
func (c *client) change(cmd *cobra.Command, e events.WorkloadChanged) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
	defer cancel()
	f, err := c.fleet(ctx)
	if err == nil {
		err = open(f, e.Workload)
	}
	if err != nil {
		return err
	}
	asked := c.event(e)
	return c.await(ctx, e.Workload, asked, reply{
		about: events.Token(e.Workload),
		heard: func(f events.Fact) (bool, error) {
			if no, is := f.(events.ChangeRefused); is && no.Change == asked.ID {
				return true, failed("%s is not changed: %s", e.Workload, no.Why)
			}
			return false, nil
		},
		so: func(f *fleet.Fleet) (bool, error) {
			w := f.Workloads[e.Workload]
			if w == nil || !e.Done(*w.Spec) {
				return false, nil
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is changed; %s\n", e.Workload, meaning(w.Spec.Autonomy))
			return true, err
		},
	})
}
