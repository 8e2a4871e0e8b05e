package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/checkpoint"
	"lowtide/shared/fleet"
)

// run is one epoch of a workload, as its own trace tells.
type run struct {
	epoch        uint64
	from, to     int64 // steps: after from, up to to
	began, ended time.Time
}

// runs reads which steps a job really made, run by run.
func (w work) runs(t *testing.T) []run {
	t.Helper()
	f, err := os.Open(w.trace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	byEpoch := map[uint64]*run{}
	for s := bufio.NewScanner(f); s.Scan(); {
		var epoch uint64
		var step, at int64
		if _, err := fmt.Sscan(s.Text(), &epoch, &step, &at); err != nil {
			t.Fatalf("%s: %q: %v", w.trace, s.Text(), err)
		}
		r := byEpoch[epoch]
		if r == nil {
			r = &run{epoch: epoch, from: step - 1, to: step - 1, began: time.Unix(0, at)}
			byEpoch[epoch] = r
		}
		if step != r.to+1 {
			t.Errorf("%s: epoch %d made step %d after step %d", w.name, epoch, step, r.to)
		}
		r.to, r.ended = step, time.Unix(0, at)
	}
	var out []run
	for _, e := range slices.Sorted(maps.Keys(byEpoch)) {
		out = append(out, *byEpoch[e])
	}
	return out
}

func TestADaemonKilledAtRandomMomentsBuysNothingTwiceAndLosesNoWork(t *testing.T) {
	t.Parallel()
	const speed = 60
	rounds := 5
	if os.Getenv("LOWTIDE_LONG") != "" {
		rounds = 50
	}
	t.Logf("%d kills; LOWTIDE_LONG=1 makes 50", rounds)
	dice := rand.New(rand.NewPCG(7, 7))
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", fmt.Sprint(speed), "--seed", "3")
	dir := t.TempDir()
	l := &lasting{t: t, bin: bin, state: filepath.Join(dir, "state"), args: []string{"--cloud", cloud.URL()}}
	l.begin()
	t.Cleanup(func() { l.kill() })
	var jobs []work
	files := map[string]string{}
	for i := range uint64(max(2, rounds/8)) {
		w := work{
			name: fmt.Sprintf("job-%d", i), steps: 400, seed: 10 + i, stepTime: 30 * time.Millisecond, saveEvery: 20, speed: speed,
			trace: filepath.Join(dir, fmt.Sprintf("trace-%d", i)),
		}
		jobs, files[w.name] = append(jobs, w), w.file(t, bin)
	}
	// ask submits what is not known yet, as a person does who got no answer.
	ask := func(upTo int) {
		for _, w := range jobs[:upTo] {
			if l.workload(w.name) == nil {
				l.call("submit", files[w.name])
			}
		}
	}
	ask(1)
	l.until("a first run", func() bool { return l.workload(jobs[0].name).Step > 0 })
	var longest time.Duration
	interrupted := 0
	for n := range rounds {
		wanted := min(len(jobs), n*len(jobs)/rounds+1)
		if n%4 == 0 {
			ask(wanted - 1)
		}
		// The kill comes at any moment, also while a submit is under way or the daemon only begins.
		submit := exec.CommandContext(t.Context(), bin, "submit", "--state", l.state, files[jobs[wanted-1].name])
		if err := submit.Start(); err != nil {
			t.Fatal(err)
		}
		if running := cloud.bill().Running(); len(running) > 0 && dice.IntN(2) == 0 {
			if cloud.Interrupt(t.Context(), running[dice.IntN(len(running))].ID, 2*time.Minute) == nil {
				interrupted++
			}
		}
		time.Sleep(time.Duration(dice.IntN(1500)) * time.Millisecond) // the moment of the kill
		l.kill()
		_ = submit.Process.Kill()
		_ = submit.Wait()
		at := time.Now()
		if dice.IntN(4) == 0 { // it dies again before it is up
			l.start()
			time.Sleep(time.Duration(dice.IntN(300)) * time.Millisecond)
			l.kill()
		}
		l.begin()
		longest = max(longest, time.Since(at))
	}
	ask(len(jobs))
	l.until("the end of all jobs", func() bool {
		f := l.fleet()
		return !slices.ContainsFunc(jobs, func(w work) bool { return !f.Workloads[w.name].Phase.Final() })
	})
	l.until("the end of all machines", func() bool { return len(cloud.bill().Running()) == 0 })

	bill := cloud.bill()
	if twice := bill.Twice(); len(twice) > 0 {
		t.Errorf("bought twice: %v", twice)
	}
	moves, again := 0, int64(0)
	f := l.fleet()
	for _, w := range jobs {
		if got := f.Workloads[w.name]; got.Phase != fleet.Finished || got.Result != w.uninterrupted() {
			t.Errorf("%s: got %s (%s) with %s, want finished with %s", w.name, got.Phase, got.Why, got.Result, w.uninterrupted())
		}
		runs := w.runs(t)
		for i, r := range runs[min(1, len(runs)):] {
			before := runs[i]
			moves++
			again += before.to - r.from
			// Since the last manifest that anybody could hear of: one interval, the way of its checkpoint, and while the daemon
			// was down.
			most := w.saveEvery + int64((longest+2*time.Second)/w.stepTime)
			if lost := before.to - r.from; lost < 0 || lost > most {
				t.Errorf("%s: epoch %d began at step %d, the one before it had made %d: want %d to %d steps made again", w.name, r.epoch, r.from, before.to, 0, most)
			}
			if !r.began.After(before.ended) {
				t.Errorf("%s: epochs %d and %d ran at once", w.name, before.epoch, r.epoch)
			}
		}
	}
	t.Logf("%d kills, longest time away %s; %d machines, %d interrupted by hand; %d moves of %d jobs, %d of %d steps made again",
		rounds, longest.Round(time.Millisecond), len(bill), interrupted, moves, len(jobs), again, int64(len(jobs))*jobs[0].steps)
}

// durable is the newest checkpoint of a workload in the state's bucket.
func (l *lasting) durable(workload string) checkpoint.ID {
	l.t.Helper()
	// A listing looks into no checkpoint, so any key will do.
	store, err := checkpoint.Open(l.t.Context(), "file://"+filepath.Join(l.state, "bucket"), []byte("nothing is opened"), checkpoint.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	defer store.Close()
	ids, err := store.List(l.t.Context(), workload)
	if err != nil || len(ids) == 0 {
		l.t.Fatalf("checkpoints of %s: %v, %v", workload, ids, err)
	}
	return ids[0]
}

func TestWhenLowtideIsDeadForEverEachMachineSavesAndEndsItselfWithinTheBound(t *testing.T) {
	t.Parallel()
	bin := program(t)
	cloud := openElsewhere(t, bin, "--speed", "120", "--foreign", "2")
	dir := t.TempDir()
	l := &lasting{t: t, bin: bin, state: filepath.Join(dir, "state"), args: []string{"--cloud", cloud.URL(), "--lease", "20m"}}
	l.begin()
	t.Cleanup(func() { l.kill() })
	var jobs []work
	var bound fleet.Money
	submit := func(i uint64) {
		w := work{ // nothing here would end by itself for hours
			name: fmt.Sprintf("job-%d", i), steps: 4000, seed: i, stepTime: 20 * time.Millisecond, saveEvery: 50, speed: 120,
			trace: filepath.Join(dir, fmt.Sprintf("trace-%d", i)),
		}
		jobs = append(jobs, w)
		var promise events.WorkloadAccepted
		if err := json.Unmarshal([]byte(l.call("submit", w.file(t, bin), "--output", "json")), &promise); err != nil {
			t.Fatal(err)
		}
		bound = bound.Add(promise.Bound)
	}
	submit(0)
	submit(1)
	l.until("two runs with checkpoints", func() bool {
		f := l.fleet()
		return f.Workloads["job-0"].Saved.Step > 0 && f.Workloads["job-1"].Saved.Step > 0
	})
	submit(2) // its machine is on its way, and will hear of nobody
	l.until("a third machine", func() bool { return len(cloud.bill()) >= 3 })
	l.kill()
	about, err := cloud.About(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spent := cloud.bill().Total(about.Now)
	l.until("the end of all machines by themselves", func() bool { return len(cloud.bill().Running()) == 0 })

	bill := cloud.bill()
	for _, r := range bill {
		if r.Why != "self" && r.Why != "interrupted" && r.Until.After(about.Now) {
			t.Errorf("%s ended at %s because %q, want by itself", r.Name, r.Until, r.Why)
		}
	}
	after := bill.Total(about.Now) // nothing runs: the time does not matter
	if after.Float() > bound.Float() {
		t.Errorf("%s were billed until the end of lowtide and %s in all; the bound said at submit is %s", spent, after, bound)
	}
	for _, w := range jobs[:2] {
		runs := w.runs(t)
		if last, saved := runs[len(runs)-1], l.durable(w.name); saved.Step != last.to {
			t.Errorf("%s made %d steps, and %d are durable", w.name, last.to, saved.Step)
		}
	}
	t.Logf("%d machines; %s before the end of lowtide, %s in all, bound %s", len(bill), spent, after, bound)
}

func TestAStoryLeavesNoProcessBehindWhetherItIsStoppedOrKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the processes of a machine are found by /proc")
	}
	for name, end := range map[string]os.Signal{"interrupted": os.Interrupt, "killed with -9": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			// 20 minutes of market time are 5 seconds here.
			cmd := exec.Command(program(t), "run", "--lease", "20m", "--speed", "240")
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "a machine", func() bool { return machinesBelow(dir) > 0 })
			if err := cmd.Process.Signal(end); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			waitFor(t, "the last process of a machine to be gone", func() bool { return machinesBelow(dir) == 0 })
		})
	}
}

// machinesBelow counts the processes of machines whose directory lies below dir.
func machinesBelow(dir string) (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range all {
		if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte("LOWTIDE_MACHINE_DIR="+dir)) {
			n++
		}
	}
	return n
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !ok(); time.Sleep(100 * time.Millisecond) { // processes tell nobody
		if time.Now().After(end) {
			t.Fatalf("waited 90 s for %s", what)
		}
	}
}
