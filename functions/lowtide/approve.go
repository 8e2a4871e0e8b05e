package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/rebalance"
	"lowtide/shared/fleet"
)

// askFlags say which purchases a person decides on.
type askFlags struct {
	hourly, worst, recovery float64
	clouds, tags            []string
	wait                    time.Duration
	otherwise               string
}

func (a *askFlags) on(cmd *cobra.Command) {
	cmd.Flags().Float64Var(&a.hourly, "ask-hourly", 0, "a person decides on machines dearer than this, USD an hour; 0: no bound")
	cmd.Flags().Float64Var(&a.worst, "ask-worst", 0, "a person decides on machines that can cost more than this, USD; 0: no bound")
	cmd.Flags().StringSliceVar(&a.clouds, "ask-cloud", nil, "a person decides on every machine of these clouds")
	cmd.Flags().StringSliceVar(&a.tags, "ask-tag", nil, "a person decides for workloads with this tag, key=value")
	cmd.Flags().DurationVar(&a.wait, "ask-wait", 0, "how long to wait for an answer, in market time; 0: as long as a plan lives")
	cmd.Flags().StringVar(&a.otherwise, "ask-default", "reject", "without an answer: reject or approve")
	cmd.Flags().Float64Var(&a.recovery, "recovery", 0, "a workload that lost its machine gets another at up to this, USD an hour, without a person; 0: up to what a person approved for it")
}

func (a *askFlags) approval() (rebalance.Approval, error) {
	if a.otherwise != "reject" && a.otherwise != "approve" {
		return rebalance.Approval{}, fmt.Errorf("--ask-default %q: want reject or approve", a.otherwise)
	}
	if a.hourly < 0 || a.worst < 0 || a.recovery < 0 || a.wait < 0 {
		return rebalance.Approval{}, errors.New("--ask-hourly, --ask-worst, --ask-wait, --recovery: want 0 or more")
	}
	out := rebalance.Approval{
		Hourly: fleet.Dollars(a.hourly), Worst: fleet.Dollars(a.worst), Recovery: fleet.Dollars(a.recovery), Clouds: a.clouds,
		Wait: a.wait, Buy: a.otherwise == "approve", Tags: map[string]string{},
	}
	for _, t := range a.tags {
		k, v, ok := strings.Cut(t, "=")
		if !ok || k == "" {
			return out, fmt.Errorf("--ask-tag %q: want key=value", t)
		}
		out.Tags[k] = v
	}
	return out, nil
}

func approveCommand() *cobra.Command {
	return decideCommand("approve", "Let a plan that waits for a person go ahead", func(plan, hash string) events.Fact {
		return events.PlanApproved{Plan: plan, Hash: hash, By: user()}
	})
}

func denyCommand() *cobra.Command {
	return decideCommand("deny", "Keep a plan that waits for a person from being carried out", func(plan, hash string) events.Fact {
		return events.PlanRejected{Plan: plan, Hash: hash, By: user()}
	})
}

func decideCommand(name, short string, fact func(plan, hash string) events.Fact) *cobra.Command {
	var o common
	var hash string
	cmd := &cobra.Command{
		Use: name + " PLAN", Short: short, Args: needs("PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.talk(cmd, func(c *client) error { return c.decide(cmd, args[0], hash, fact) })
		},
	}
	cmd.Flags().StringVar(&hash, "hash", "", "of the plan as it was seen; the word counts for no other. Empty: as it is now")
	return o.on(cmd, false)
}

// decide says a person's word on a plan and waits for what comes of it.
func (c *client) decide(cmd *cobra.Command, plan, hash string, fact func(plan, hash string) events.Fact) error {
	f, err := c.fleet(cmd.Context())
	if err != nil {
		return err
	}
	p := f.Plans[plan]
	if p == nil || p.Action != fleet.Launch || p.Approved {
		var open []string
		for _, id := range fleet.Sorted(f.Plans) {
			if q := f.Plans[id]; q.Action == fleet.Launch && !q.Approved {
				open = append(open, id)
			}
		}
		return failed("plan %q does not wait for anybody; these do: %s", plan, strings.Join(append(open, "no other")[:max(1, len(open))], ", "))
	}
	if hash == "" {
		hash = p.Hash() // what this command has looked at
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 20*time.Second)
	defer cancel()
	told := func(format string, args ...any) (bool, error) {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", plan, fmt.Sprintf(format, args...))
		return true, err
	}
	return c.await(ctx, plan, c.event(fact(plan, hash)), reply{
		about: ">",
		heard: func(f events.Fact) (bool, error) {
			switch f := f.(type) {
			case events.ApprovalRefused:
				if f.Plan == plan && f.By == user() {
					return true, failed("%s: nothing is changed: %s", plan, f.Why)
				}
			case events.PlanMade:
				if f.Plan.ID == plan {
					return told("approved; %s may be bought at up to %s/h", f.Plan.Offers[0], f.Plan.Highest())
				}
			}
			return false, nil
		},
		so: func(f *fleet.Fleet) (bool, error) {
			switch now := f.Plans[plan]; {
			case now == nil:
				return told("decided; it does not wait any more")
			case now.Approved:
				return told("approved; %s may be bought at up to %s/h", now.Offers[0], now.Highest())
			}
			return false, nil
		},
	})
}
