package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lowtide/shared/checkpoint"
)

func TestALogThatIsFollowedComesWholeAcrossItsRotation(t *testing.T) {
	t.Parallel()
	store, err := checkpoint.Open(t.Context(), "mem://", make([]byte, 16), checkpoint.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	dir := t.TempDir()
	sh := &shipper{dir: dir, machine: "m1", store: store, hide: func(s string) string { return s }}
	write := func(name, text string) {
		t.Helper()
		if !strings.Contains(name, "/") {
			name = "run/" + name
		}
		file := filepath.Join(dir, filepath.FromSlash(name))
		err := os.MkdirAll(filepath.Dir(file), 0o700)
		if err == nil {
			err = os.WriteFile(file, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	begins := func(holder string, epoch int) { write(holder+"/holder.json", fmt.Sprintf(`{"epoch": %d}`, epoch)) }
	var out strings.Builder
	printed := map[int64]int64{}
	follow := func(epoch uint64) {
		t.Helper()
		sh.at = time.Time{}
		if err := sh.ship(t.Context(), "w", epoch, false); err != nil {
			t.Fatal(err)
		}
		all, err := store.Logs(t.Context(), "w")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			if err := printLog(&out, l, printed); err != nil {
				t.Fatal(err)
			}
		}
	}
	begins("setup", 1)
	write("setup/log", "installing\n")
	follow(1)
	write("setup/log", "installing\ninstalled\n")
	begins("run", 1)
	write("log", "one\n")
	follow(1)
	write("log", "one\ntwo \xff\n")
	follow(1)
	follow(1) // nothing new
	write("log.1", "one\ntwo \xff\nthree\n")
	write("log", "four\n")
	follow(1)
	write("log.1", "four\nfive\n")
	write("log", "")
	follow(1)
	if err := os.Remove(filepath.Join(dir, "run", "log.1")); err != nil {
		t.Fatal(err)
	}
	begins("run", 2) // set up already
	write("log", "again\n")
	follow(2)
	want := "== m1, epoch 1\ninstalling\ninstalled\none\ntwo \xff\nthree\nfour\nfive\n== m1, epoch 2\nagain\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}

	// Of what is more than is kept, the end.
	out.Reset()
	begins("run", 3)
	write("log", strings.Repeat(fmt.Sprintf("%099d\n", 7), checkpoint.MaxLog/50))
	follow(3)
	if got := out.String(); len(got) > checkpoint.MaxLog+50 || !strings.HasPrefix(got, "== m1, epoch 3\n…\n") {
		t.Errorf("got %d bytes that begin with %.40q, want the last %d and a mark", len(got), got, checkpoint.MaxLog)
	}
	if again := out.Len(); again > 0 {
		follow(3)
		if out.Len() != again {
			t.Errorf("printed again: %d bytes", out.Len()-again)
		}
	}
}
