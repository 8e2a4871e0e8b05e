package provider_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lowtide/shared/provider"
)

// agent stands for the program on the mirror: it tells what it was given, and stays.
const agent = `#!/bin/sh
{ echo "$@"; echo "$LOWTIDE_MACHINE"; echo "$LOWTIDE_NATS_TOKEN"; echo "$MORE"; } >told.new; mv told.new told
exec sleep 20
`

func TestTheBootScriptStartsTheCheckedAgentOnce(t *testing.T) {
	for _, tool := range []string{"sh", "curl", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	var fetched atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetched.Add(1)
		if !strings.HasPrefix(r.URL.Path, "/m/lowtide-linux-") {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(agent))
	}))
	defer srv.Close()
	sum := sha256.Sum256([]byte(agent))
	right := hex.EncodeToString(sum[:])
	run := func(dir, digest string) error {
		b := provider.Boot{Mirror: srv.URL + "/m/", SHA256: map[string]string{"amd64": digest, "arm64": digest}}
		script, err := b.Script("LOWTIDE_MACHINE=m 1\nLOWTIDE_NATS_TOKEN=it's $(touch pwned)\n", "export MORE=seen\n")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh")
		cmd.Stdin, cmd.Env = strings.NewReader(script), append(os.Environ(), "LOWTIDE_DIR="+dir)
		return cmd.Run()
	}
	dir := t.TempDir()
	if err := run(dir, strings.Repeat("0", 64)); err == nil {
		t.Error("a program with another checksum is no error")
	}
	if _, err := os.Stat(filepath.Join(dir, "lowtide")); err == nil {
		t.Error("a program with another checksum is installed")
	}
	if err := run(dir, right); err != nil {
		t.Fatal(err)
	}
	defer exec.Command("sh", "-c", "kill $(cat "+filepath.Join(dir, "agent.pid")+")").Run()
	var told []byte
	for end := time.Now().Add(10 * time.Second); len(told) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // it runs in the background
		told, _ = os.ReadFile(filepath.Join(dir, "told"))
	}
	if want := "agent\nm 1\nit's $(touch pwned)\nseen\n"; string(told) != want {
		t.Errorf("the agent was given %q, want %q", told, want)
	}
	before, _ := os.ReadFile(filepath.Join(dir, "agent.pid"))
	if err := run(dir, right); err != nil { // the machine was started again
		t.Error(err)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "agent.pid")); string(after) != string(before) || fetched.Load() != 2 {
		t.Errorf("run again: agent %q was %q, fetched %d times", after, before, fetched.Load())
	}
}
