package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/lowtide/story"
	"lowtide/shared/checkpoint"
)

// archive is the store of checkpoints that the flags name: that of a running lowtide, or any bucket with its key.
type archive struct {
	common
	bucket, key string
}

func checkpointsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "checkpoints", Short: "What is kept of each workload; reads, checks and prunes it",
		Long: "What is kept of each workload. With --bucket and --key also where no lowtide runs: the key is the file\n" +
			"checkpoint-key of its state directory.",
	}
	cmd.AddCommand(checkpointsList(), checkpointsVerify(), checkpointsPrune())
	return cmd
}

func (a *archive) on(cmd *cobra.Command) *cobra.Command {
	a.common.on(cmd, true)
	cmd.Flags().StringVar(&a.bucket, "bucket", "", "URL of the bucket; empty: that of the lowtide that runs")
	cmd.Flags().StringVar(&a.key, "key", "", "with --bucket: the file that holds its key")
	return cmd
}

// open opens the store; close it after use.
func (a *archive) open(ctx context.Context) (*checkpoint.Store, error) {
	bucket := a.bucket
	var text string
	switch {
	case bucket != "":
		b, err := os.ReadFile(a.key)
		if err != nil {
			return nil, usage(fmt.Errorf("--bucket needs --key, the file with its key: %w", err))
		}
		text = strings.TrimSpace(string(b))
	default:
		c, err := dial(ctx, a.state)
		if err != nil {
			return nil, err
		}
		c.nc.Close()
		bucket, text = c.Bucket, c.Key
	}
	key, err := hex.DecodeString(text)
	if err != nil || len(key) < 16 {
		return nil, usage(fmt.Errorf("the checkpoints' key is no hexadecimal text of 16 bytes or more"))
	}
	s, err := checkpoint.Open(ctx, bucket, key, checkpoint.Options{})
	if err != nil {
		return nil, failed("%v", err)
	}
	return s, nil
}

// kept is a line of the list.
type kept struct {
	Workload string    `json:"workload"`
	ID       string    `json:"id"` // epoch-step
	Created  time.Time `json:"created,omitzero"`
	Bytes    int64     `json:"bytes"`
	Files    int       `json:"files"`
	Trouble  string    `json:"trouble,omitempty"`
}

func checkpointsList() *cobra.Command {
	var a archive
	cmd := &cobra.Command{
		Use: "ls [WORKLOAD]", Short: "Lists checkpoints, newest first", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.Close()
			if len(args) == 0 {
				if args, err = s.Workloads(cmd.Context()); err != nil {
					return failed("%v", err)
				}
			}
			all := []kept{}
			for _, w := range args {
				if all, err = list(cmd.Context(), s, w, all); err != nil {
					return failed("%v", err)
				}
			}
			return a.print(cmd.OutOrStdout(), all, func(w io.Writer) {
				fmt.Fprintln(w, "WORKLOAD\tCHECKPOINT\tSAVED\tBYTES\tFILES\tTROUBLE")
				for _, k := range all {
					saved := "-"
					if !k.Created.IsZero() {
						saved = k.Created.Format(time.RFC3339)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\n", k.Workload, k.ID, saved, k.Bytes, k.Files, k.Trouble)
				}
			})
		},
	}
	return a.on(cmd)
}

func list(ctx context.Context, s *checkpoint.Store, workload string, to []kept) ([]kept, error) {
	ids, err := s.List(ctx, workload)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		k := kept{Workload: workload, ID: id.String()}
		switch m, err := s.Manifest(ctx, workload, id); {
		case errors.Is(err, checkpoint.ErrNotFound):
			continue // pruned meanwhile
		case err != nil:
			k.Trouble = err.Error()
		default:
			k.Created, k.Bytes, k.Files = m.Created, m.Bytes(), len(m.Files)
		}
		to = append(to, k)
	}
	return to, nil
}

func checkpointsVerify() *cobra.Command {
	var a archive
	cmd := &cobra.Command{
		Use: "verify WORKLOAD [CHECKPOINT]", Short: "Reads a checkpoint, the newest if none is named, and checks every byte", Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.Close()
			id, err := named(cmd.Context(), s, args)
			if err != nil {
				return err
			}
			began := time.Now()
			if err := s.Verify(cmd.Context(), args[0], id, nil); err != nil {
				return failed("%v", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s of %s is whole: every byte is what was saved (%s)\n", id, args[0], story.Short(time.Since(began)))
			return nil
		},
	}
	return a.on(cmd)
}

// named is the checkpoint that was asked for.
func named(ctx context.Context, s *checkpoint.Store, args []string) (checkpoint.ID, error) {
	if len(args) == 2 {
		id, err := checkpoint.ParseID(args[1])
		if err != nil {
			return id, usage(err)
		}
		return id, nil
	}
	ids, err := s.List(ctx, args[0])
	if err != nil {
		return checkpoint.ID{}, failed("%v", err)
	}
	if len(ids) == 0 {
		return checkpoint.ID{}, failed("%s has no checkpoint; lowtide checkpoints ls lists what there is", args[0])
	}
	return ids[0], nil
}

func checkpointsPrune() *cobra.Command {
	var o common
	var last int
	cmd := &cobra.Command{
		Use: "prune WORKLOAD", Short: "Withdraws all but the newest checkpoints of a workload that has ended", Args: needs("WORKLOAD"),
		Long: "Withdraws all but the newest checkpoints of a workload that has ended; what a run needs is pruned by lowtide itself.\n" +
			"A withdrawn checkpoint can be restored for a day; after that another prune deletes what none names any more.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 2 {
				return usage(fmt.Errorf("--keep %d: want 2 or more, so that one that turns out damaged has one before it", last))
			}
			return o.talk(cmd, func(c *client) error { return c.prune(cmd, &o, args[0], last) })
		},
	}
	cmd.Flags().IntVar(&last, "keep", 2, "how many of the newest stay")
	return o.on(cmd, true)
}

func (c *client) prune(cmd *cobra.Command, o *common, workload string, last int) error {
	f, err := c.fleet(cmd.Context())
	if err != nil {
		return err
	}
	w := f.Workloads[workload]
	if w == nil {
		return failed("there is no workload %q; there are: %s", workload, strings.Join(names(f), ", "))
	}
	if !w.Phase.Final() {
		return failed("%s has not ended: its checkpoints are pruned by lowtide itself", workload)
	}
	a := archive{common: *o}
	s, err := a.open(cmd.Context())
	if err != nil {
		return err
	}
	defer s.Close()
	done, err := s.Prune(cmd.Context(), workload, checkpoint.Keep{Epoch: int64(w.Epoch), Last: last})
	if err != nil {
		return failed("%v", err)
	}
	return o.print(cmd.OutOrStdout(), done, func(w io.Writer) {
		fmt.Fprintf(w, "%d checkpoints withdrawn; %d pieces deleted, %d bytes\n", len(done.Manifests), done.Chunks, done.Bytes)
		for _, key := range done.Damaged {
			fmt.Fprintf(w, "%s cannot be read: while it is there no piece is deleted\n", key)
		}
	})
}
