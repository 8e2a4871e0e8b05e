package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/events"
	"lowtide/functions/intake"
	"lowtide/functions/lowtide/simulate/replay"
	"lowtide/functions/rebalance"
	"lowtide/functions/rules"
	"lowtide/shared/fleet"
)

// readRules reads a rules file; the workload files that it names lie beside it.
func readRules(file string) (*rules.Set, error) { return readRulesAs(file, os.LookupEnv) }

func readRulesAs(file string, env func(string) (string, bool)) (*rules.Set, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, usage(err)
	}
	s, err := rules.Parse(file, b, rules.Options{
		Env: env,
		Open: func(name string) ([]byte, error) {
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(file), name)
			}
			return os.ReadFile(name)
		},
		Look: func(name string, b []byte) error {
			if _, err := intake.AskedFor(events.WorkloadAsked{Name: "x", File: b}, time.Now()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		},
	})
	if err != nil {
		return nil, usage(err)
	}
	return s, nil
}

// automations reads the rules of a run. Without a file there are none.
func (f runFlags) automations() (*rules.Set, error) {
	file := f.fileOr(f.rules, "rules.yaml")
	if file == "" {
		return &rules.Set{}, nil
	}
	return readRules(file)
}

func rulesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Your own automations: look at a rules file, or try it on facts of the past"}
	cmd.AddCommand(rulesCheckCommand(), rulesTestCommand())
	return cmd
}

func rulesCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Say what is wrong with a rules file, with its lines", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := readRules(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d rules: %s\n", args[0], len(s.Names()), strings.Join(s.Names(), ", "))
			return nil
		},
	}
}

func rulesTestCommand() *cobra.Command {
	var dir, name string
	cmd := &cobra.Command{
		Use:   "test FILE",
		Short: "What the rules would have done on recorded facts; nothing is done",
		Long: "Plays recorded facts (a --state directory of lowtide run, which is copied first, or files of lowtide events) to a rules\n" +
			"file and prints what each rule would have done, and when. Nothing follows from it: what a rule would have changed did not\n" +
			"change in the record.\n\n" +
			"Exit status: 0, 1 a rule would have been switched off, 2 bad input.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return usage(errors.New("--events DIR is missing: the --state directory of lowtide run, or one with files of lowtide events"))
			}
			s, err := readRules(args[0])
			if err != nil {
				return err
			}
			r, err := replay.Read(cmd.Context(), dir)
			if err != nil {
				return usage(err)
			}
			if name == "" {
				name = r.Events[0].Fleet
			}
			return playRules(cmd, s, name, r.Events)
		},
	}
	cmd.Flags().StringVar(&dir, "events", "", "directory with the recorded facts")
	cmd.Flags().StringVar(&name, "fleet", "", "whose facts; empty: that of the first fact")
	return cmd
}

func playRules(cmd *cobra.Command, s *rules.Set, name string, record []events.Event) error {
	known := rebalance.Follow(name)
	said := rules.Play(s, name, record, func(e events.Event) *fleet.Fleet {
		known.Hear(e, e.Time)
		return known.Fleet()
	})
	acts, off := 0, 0
	out := cmd.OutOrStdout()
	for _, e := range said {
		at := e.Time.UTC().Format("2006-01-02 15:04:05")
		switch f := e.Data.(type) {
		case events.RuleActed:
			acts++
			state := "done"
			if !f.Done {
				state = "not done"
			}
			fmt.Fprintf(out, "%s  %s: %s %s %s: %s\n", at, f.Rule, f.Act, f.About, state, f.Result)
		case events.RuleFailed:
			off++
			fmt.Fprintf(out, "%s  %s: SWITCHED OFF: %s\n", at, f.Rule, f.Why)
		}
	}
	fmt.Fprintf(out, "%d facts, %d rules: %d acts, %d rules switched off\n", len(record), len(s.Names()), acts, off)
	if off > 0 {
		return failed("%d rules would have been switched off", off)
	}
	return nil
}
