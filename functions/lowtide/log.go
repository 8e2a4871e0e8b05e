package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lowtide/functions/agent/holder"
	"lowtide/shared/checkpoint"
)

// shipper keeps the end of what the workload prints, its setup first, in the bucket, where it outlives the machine.
type shipper struct {
	dir     string // of the workload on this machine: its holders' directories are setup and run in it
	machine string
	store   *checkpoint.Store
	hide    func(string) string // takes secrets out

	epoch uint64
	setup int64 // size of the setup's log, when last seen
	base  int64 // bytes that the run printed before what its log file holds
	size  int64 // of that, when last seen
	at    time.Time
}

// shipEach is the least time between two copies, unless it is the last.
const shipEach = 2 * time.Second

// ship copies the end of the log if something was printed since the last copy.
func (s *shipper) ship(ctx context.Context, workload string, epoch uint64, last bool) error {
	if !last && time.Since(s.at) < shipEach {
		return nil
	}
	s.at = time.Now()
	files, sizes, err := s.files(epoch)
	if err != nil {
		return err
	}
	setup, older, size := sizes[0], sizes[1], sizes[2]
	if epoch == s.epoch && setup == s.setup && size == s.size {
		return nil
	}
	switch {
	case epoch != s.epoch: // or this agent is new: what was dropped before is not known
		s.base = older
	case size < s.size: // the holder has moved it to log.1
		s.base += older
	}
	s.epoch, s.setup, s.size = epoch, setup, size
	text, err := ends(files)
	if err != nil {
		return err
	}
	return s.store.SaveLog(ctx, workload, checkpoint.Log{
		Machine: s.machine, Epoch: int64(epoch), From: max(0, setup+s.base+size-int64(len(text))), Text: []byte(s.hide(string(text))),
	})
}

// files are the logs of an epoch in their order, each with its size: the setup's, if it ran for this epoch, and the
// run's two, once it runs.
func (s *shipper) files(epoch uint64) (files [3]string, sizes [3]int64, err error) {
	files = [3]string{filepath.Join(s.dir, "setup", "log"), filepath.Join(s.dir, "run", "log.1"), filepath.Join(s.dir, "run", "log")}
	of := map[string]bool{}
	for _, name := range []string{"setup", "run"} {
		h, err := holder.Find(filepath.Join(s.dir, name))
		if err != nil {
			return files, sizes, err
		}
		of[name] = h.Epoch == int64(epoch)
	}
	for i, name := range files {
		if !of[filepath.Base(filepath.Dir(name))] {
			files[i] = ""
			continue
		}
		info, err := os.Stat(name)
		if err == nil {
			sizes[i] = info.Size()
		} else if !errors.Is(err, os.ErrNotExist) {
			return files, sizes, err
		}
	}
	return files, sizes, nil
}

// margin is read before what is kept, so that no half of a secret is left at its beginning.
const margin = 64 << 10

// ends is the last of files that follow one another, and somewhat more than is kept.
func ends(files [3]string) ([]byte, error) {
	var all []byte
	for _, name := range files {
		if name == "" {
			continue
		}
		b, err := readEnd(name, checkpoint.MaxLog+margin)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		all = append(all, b...)
	}
	return all[max(0, len(all)-checkpoint.MaxLog-margin):], nil
}

func readEnd(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() > most {
		_, err = f.Seek(-most, io.SeekEnd)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, most))
}

func logsCommand() *cobra.Command {
	var o common
	var follow bool
	cmd := &cobra.Command{
		Use: "logs WORKLOAD", Short: "What the workload printed, machine after machine, also of machines that are gone", Args: needs("WORKLOAD"),
		Long: "What the workload printed, machine after machine, also of machines that are gone.\n\n" +
			"Each machine keeps the last 256 KiB of a run beside the workload's checkpoints, copied every few seconds and\n" +
			"before the run's end is told: --follow is some seconds behind, and what a machine printed in the last seconds\n" +
			"before it was taken away without notice is lost.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.talk(cmd, func(c *client) error {
				return c.logs(cmd, args[0], follow)
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on, also across a move")
	return o.on(cmd, false)
}

// logs prints what each run of the workload printed, in turn.
func (c *client) logs(cmd *cobra.Command, name string, follow bool) error {
	store, err := checkpoint.Open(cmd.Context(), c.Bucket, []byte("logs are not sealed"), checkpoint.Options{})
	if err != nil {
		return failed("open %s: %v", c.Bucket, err)
	}
	defer store.Close()
	printed := map[int64]int64{} // how far, by epoch
	for first := true; cmd.Context().Err() == nil; first = false {
		f, err := c.fleet(cmd.Context())
		if err != nil && follow && !first {
			wait(cmd.Context(), time.Second) // it may be starting again; who follows has time
			continue
		}
		if err != nil {
			return err
		}
		w := f.Workloads[name]
		if w == nil {
			return failed("there is no workload %q; there are: %s", name, strings.Join(names(f), ", "))
		}
		all, err := store.Logs(cmd.Context(), name)
		for _, l := range all {
			if err := printLog(cmd.OutOrStdout(), l, printed); err != nil {
				return err
			}
		}
		if err != nil && !follow {
			return failed("%v", err)
		}
		if !follow || w.Phase.Final() {
			return nil
		}
		wait(cmd.Context(), 500*time.Millisecond)
	}
	return nil
}

// printLog prints what is new of a run's log.
func printLog(out io.Writer, l checkpoint.Log, printed map[int64]int64) error {
	from, known := printed[l.Epoch]
	end := l.From + int64(len(l.Text))
	if !known {
		if _, err := fmt.Fprintf(out, "== %s, epoch %d\n", l.Machine, l.Epoch); err != nil {
			return err
		}
		from = 0
	}
	if from > end || from < l.From { // the machine has lost count, or more was printed than is kept
		if l.From > 0 {
			fmt.Fprintln(out, "…")
		}
		from = l.From
	}
	_, err := out.Write(l.Text[from-l.From:])
	printed[l.Epoch] = end
	return err
}
