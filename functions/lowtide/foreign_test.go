package main_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lowtide/shared/provider/fake"
)

// untouched checks the cloud's own record of calls: none was about others' machines, nor about those of ids.
func (c *elsewhere) untouched(from int, ids ...string) {
	c.t.Helper()
	writes, err := c.Writes(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	bill, err := c.Bill(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range bill {
		if r.Foreign && !r.Bills() {
			c.t.Errorf("%s is somebody else's, and ended: %s", r.ID, r.Why)
		}
	}
	for i, w := range writes {
		foreign := slices.ContainsFunc(bill, func(r fake.Rental) bool { return r.ID == w.ID && r.Foreign })
		if foreign || i >= from && slices.Contains(ids, w.ID) {
			c.t.Errorf("%s was called about %s at %s", w.Call, w.ID, w.At)
		}
	}
}

func (c *elsewhere) writes() int {
	c.t.Helper()
	w, err := c.Writes(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return len(w)
}

func TestOthersMachinesAndOursWithoutARecordAreNeverTouched(t *testing.T) {
	t.Parallel()
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", "120", "--foreign", "50")
	l := &lasting{t: t, bin: bin, state: filepath.Join(t.TempDir(), "state"), args: []string{"--cloud", cloud.URL()}}
	l.begin()
	t.Cleanup(func() { l.kill() })
	job := func(name string, steps int64) string {
		return work{name: name, steps: steps, seed: 1, stepTime: 20 * time.Millisecond, saveEvery: 50, speed: 120}.file(t, bin)
	}
	l.call("submit", job("before", 100_000))
	l.until("a checkpoint", func() bool { return l.workload("before").Saved.Step > 0 })

	// The store is lost. What the directory holds beside it is not.
	l.kill()
	if err := os.RemoveAll(filepath.Join(l.state, "nats")); err != nil {
		t.Fatal(err)
	}
	var former []string
	for _, r := range cloud.bill().Running() {
		former = append(former, r.ID)
	}
	from := cloud.writes()
	l.begin()
	if said, _ := os.ReadFile(l.log()); !strings.Contains(string(said), "the store in "+l.state+" is empty") {
		t.Errorf("the daemon said %s, want that its store is empty", said)
	}
	l.until("the alarm", func() bool { return strings.Contains(l.fleet().Halted, former[0]) })
	l.call("submit", job("after", 60))
	time.Sleep(10 * time.Second) // 20 minutes to the market: long enough for a stray to be ended, were it taken for one
	if n := cloud.writes(); n != from {
		t.Errorf("%d writing calls while a person is asked, want none", n-from)
	}

	// A person looks, and lifts it.
	if out := l.call("resume"); !strings.Contains(out, "may buy again") {
		t.Errorf("resume: %s", out)
	}
	l.until("the end of the new job", func() bool { w := l.workload("after"); return w != nil && w.Phase.Final() })
	l.until("the end of its machines", func() bool { return len(cloud.bill().Running()) == len(former) })
	cloud.untouched(from, former...)
	names := map[string]string{}
	for _, r := range cloud.bill() {
		if other := names[r.Name]; other != "" {
			t.Errorf("%s and %s have one name, %s: orders to the one are obeyed by the other", other, r.ID, r.Name)
		}
		names[r.Name] = r.ID
	}

	// They can be ended, by who asks for it by name.
	install, err := os.ReadFile(filepath.Join(l.state, "installation"))
	if err != nil {
		t.Fatal(err)
	}
	l.kill() // no NATS anywhere
	out := l.bare("panic", "--cloud", cloud.URL(), "--installation", string(install))
	if !strings.Contains(out, former[0]) || !strings.Contains(out, "no machine of ours runs") {
		t.Errorf("panic from the cloud alone: %s", out)
	}
	if n := len(cloud.bill().Running()); n > 0 {
		t.Errorf("%d machines of ours run after it", n)
	}
	cloud.untouched(0)
}
