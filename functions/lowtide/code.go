package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
	"lowtide/shared/parcel"
)

// packed packs the directory that a workload file names; a relative one lies beside the file. Nil if it names none.
func packed(file, workdir string) (*parcel.Parcel, error) {
	if workdir == "" {
		return nil, nil
	}
	dir := workdir
	if below, home := strings.CutPrefix(workdir, "~/"); home {
		own, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("%s: field workdir: %w", file, err)
		}
		dir = filepath.Join(own, below)
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(filepath.Dir(file), dir)
	}
	p, err := parcel.Pack(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: field workdir: %w", file, err)
	}
	return &p, nil
}

// bring takes the workload's code to the bucket, before anybody is told of the workload: its machines fetch it there.
func (c *client) bring(cmd *cobra.Command, spec *fleet.Spec, code *parcel.Parcel) error {
	if code == nil {
		return nil
	}
	store, err := checkpoint.Open(cmd.Context(), c.Bucket, []byte("code is not sealed"), checkpoint.Options{})
	if err != nil {
		return failed("field workdir: open the bucket that code goes to (%q): %v", c.Bucket, err)
	}
	defer store.Close()
	if err := store.SaveCode(cmd.Context(), spec.Name, code.Sum, code.Packed); err != nil {
		return failed("field workdir: %v", err)
	}
	spec.Kit.Code, spec.Kit.Bytes = code.Sum, int64(len(code.Packed))
	fmt.Fprintf(cmd.ErrOrStderr(), "workdir packed: files %d, bytes %d, %s\n", code.Files, len(code.Packed), code.Sum[:12])
	return nil
}
