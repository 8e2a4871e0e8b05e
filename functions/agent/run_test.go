package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/agent"
	"lowtide/functions/agent/agenttest"
	"lowtide/shared/fleet"
)

func TestFirstWordIsReadyThenHeard(t *testing.T) {
	b := newBed(t, func(o *agenttest.Options) { o.Config.Bought = t0.Add(-90 * time.Second) })
	b.pass(time.Second)
	if len(b.said) != 2 || b.said[0].Data.Kind() != "instance.ready" || b.said[1].Data.Kind() != "machine.heard" {
		t.Fatalf("said %+v, want instance.ready and machine.heard", b.said)
	}
	if boot := one[events.InstanceReady](b).Boot; boot != 91*time.Second {
		t.Errorf("boot took %s, want 91s", boot)
	}
}

func TestIdleMachineBeatsEachHalfMinute(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.forget()
	b.pass(5 * time.Minute)
	if n := len(facts[events.MachineHeard](b)); n != 10 || len(b.said) != 10 {
		t.Errorf("heard %d times among %d facts in 5 minutes, want 10 among 10", n, len(b.said))
	}
	b.freshIDs()
}

func TestWorkloadRunsToItsEndAndItsResultIsDurable(t *testing.T) {
	b := newBed(t, slowUpload(10*time.Second))
	b.steps = 300
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(6 * time.Minute)
	st, fin := one[events.WorkloadStarted](b), one[events.WorkloadFinished](b)
	if st.Epoch != 1 || st.Step != 0 || st.From != "" {
		t.Errorf("started %+v, want epoch 1 from step 0", st)
	}
	if fin.Result != whole(300) || fin.Saved.ID != "1-300" || !contains(durable(b), "1-300") {
		t.Errorf("finished %+v with %v durable, want result %s and 1-300", fin, durable(b), whole(300))
	}
	if h := b.last(); h.Result != fin.Result || h.Run.Phase != fleet.RunFinished || h.Saved.ID != "1-300" {
		t.Errorf("heard %+v, want all that finished said", h)
	}
	if n := len(facts[events.WorkloadProgressed](b)); n < 3 || n > 5 {
		t.Errorf("progressed was said %d times in 5 minutes, want once a minute", n)
	}
	b.freshIDs()
}

func TestPeriodicCheckpointsBecomeDurableOneAtATime(t *testing.T) {
	b := newBed(t, slowUpload(90*time.Second)) // slower than the job saves
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(10 * time.Minute)
	saves := facts[events.CheckpointSaved](b)
	if len(saves) < 4 || len(saves) > 7 {
		t.Errorf("%d checkpoints became durable in 10 minutes of 90 s uploads, want 4 to 7: %v", len(saves), durable(b))
	}
	if h := b.last(); h.Saved.ID != saves[len(saves)-1].Manifest.ID {
		t.Errorf("heard of %s, want the newest durable, %s", h.Saved.ID, saves[len(saves)-1].Manifest.ID)
	}
}

func TestOrderSaidAgainIsAnsweredAgainAndDoneOnce(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(30 * time.Second)
	b.order(start(1, 1, "", ""))
	if n := len(facts[events.WorkloadStarted](b)); n != 2 {
		t.Errorf("started was said %d times for two orders, want 2", n)
	}
	stop := start(2, 1, "", "")
	stop.Save, stop.Stop = &fleet.Save{ID: "s"}, true
	b.order(stop)
	b.pass(20 * time.Second)
	b.forget()
	b.order(stop)
	one[events.CheckpointSaved](b)
	one[events.WorkloadStopped](b)
	b.order(start(1, 1, "", "")) // late: a lower number
	b.pass(time.Minute)
	if len(b.log.Lives) != 1 {
		t.Errorf("%d processes were started, want 1", len(b.log.Lives))
	}
	b.freshIDs()
}

func TestSaveAndStopEndsWithANewDurableCheckpoint(t *testing.T) {
	b := newBed(t, slowUpload(7*time.Second))
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(90 * time.Second)
	b.order(fleet.Order{Number: 2, Epoch: 1, Save: &fleet.Save{ID: "s1", By: b.now.Add(2 * time.Minute)}, Stop: true})
	b.pass(30 * time.Second)
	stopped := one[events.WorkloadStopped](b)
	if stopped.Saved.Step < 90 || !contains(durable(b), stopped.Saved.ID) {
		t.Errorf("stopped with %+v, durable %v, want a checkpoint of step 90 or more", stopped.Saved, durable(b))
	}
	if stopped.Saved.Took < 7*time.Second {
		t.Errorf("the save took %s from request to durable, want 7s or more", stopped.Saved.Took)
	}
	var ids []string
	for _, s := range facts[events.CheckpointSaved](b) {
		ids = append(ids, s.Save)
	}
	if ids[len(ids)-1] != "s1" {
		t.Errorf("saves %q, want the last to answer s1", ids)
	}
	if b.m.Alive() != 0 {
		t.Errorf("epoch %d still runs", b.m.Alive())
	}
}

func TestSaveWithoutStopTakesThePeriodicCheckpoint(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(100 * time.Second) // the job saved at step 60
	b.order(fleet.Order{Number: 2, Epoch: 1, Save: &fleet.Save{ID: "s1"}})
	b.pass(5 * time.Second)
	var answered []events.CheckpointSaved
	for _, s := range facts[events.CheckpointSaved](b) {
		if s.Save == "s1" {
			answered = append(answered, s)
		}
	}
	if len(answered) != 1 || answered[0].Manifest.Step != 60 {
		t.Errorf("answers %+v, want the checkpoint of step 60\n%s", answered, b.story())
	}
	if b.m.Alive() != 1 || !b.m.Asked().IsZero() {
		t.Error("the workload was asked to stop, want it to run on")
	}
}

func TestSaveThatCannotFinishIsNotBegun(t *testing.T) {
	for _, stop := range []bool{true, false} {
		b := newBed(t, slowUpload(50*time.Second))
		b.pass(time.Second)
		b.order(start(1, 1, "", ""))
		b.pass(119 * time.Second) // one measured upload
		if n := len(durable(b)); n != 1 {
			t.Fatalf("%d durable, want 1", n)
		}
		b.m.SaveNow()
		b.order(fleet.Order{Number: 2, Epoch: 1, Save: &fleet.Save{ID: "s1", By: b.now.Add(30 * time.Second)}, Stop: stop})
		b.pass(25 * time.Second)
		why := one[events.CheckpointFailed](b).Why
		for _, want := range []string{"not begun", "1000 bytes", "20 B/s", "window"} {
			if !strings.Contains(why, want) {
				t.Errorf("stop %v: why %q, want it to hold %q", stop, why, want)
			}
		}
		if !b.m.Asked().IsZero() {
			t.Errorf("stop %v: the job was asked for a checkpoint that cannot finish", stop)
		}
		if stop {
			if s := one[events.WorkloadStopped](b); s.Saved.Step != 60 {
				t.Errorf("stopped with %+v, want the checkpoint of step 60", s.Saved)
			}
		} else if b.m.Alive() != 1 {
			t.Error("the workload was ended, want it to run to the end")
		}
	}
}

func TestLaterEpochEndsTheEarlierRunFirst(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(100 * time.Second)
	b.order(start(2, 2, "1-60", ""))
	b.pass(10 * time.Second)
	if s := one[events.WorkloadStopped](b); s.Epoch != 1 {
		t.Errorf("stopped %+v, want epoch 1", s)
	}
	all := facts[events.WorkloadStarted](b)
	if len(all) != 2 || all[1].Epoch != 2 || all[1].Step != 60 {
		t.Errorf("started %+v, want epoch 2 from step 60", all)
	}
	b.noOverlap()
	b.order(start(3, 1, "", "")) // nonsense: an epoch that is over
	b.pass(10 * time.Second)
	if b.m.Alive() != 2 {
		t.Errorf("epoch %d runs, want 2", b.m.Alive())
	}
}

func TestEpochThatIsOverNeverStartsAgain(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(fleet.Order{Number: 1, Epoch: 3, Stop: true}) // its start never arrived
	b.pass(time.Second)
	if h := b.last(); h.Run.Epoch != 3 || h.Run.Phase != fleet.RunStopped {
		t.Errorf("heard %+v, want epoch 3 stopped", h.Run)
	}
	b.order(start(2, 3, "", ""))
	b.order(start(3, 2, "", ""))
	b.pass(time.Minute)
	if len(b.log.Lives) != 0 {
		t.Errorf("%d processes were started, want none", len(b.log.Lives))
	}
}

func TestDamagedManifestFallsBackToThePrior(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(150 * time.Second)
	b.store.Damage("w", "1-120")
	b.order(start(2, 2, "1-120", "1-60"))
	b.pass(5 * time.Second)
	if why := one[events.CheckpointFailed](b).Why; !strings.Contains(why, "1-120") || !strings.Contains(why, "1-60") {
		t.Errorf("why %q, want both manifests named", why)
	}
	if s := facts[events.WorkloadStarted](b)[1]; s.From != "1-60" || s.Step != 60 {
		t.Errorf("started %+v, want it from 1-60", s)
	}
	b.store.Damage("w", "1-60")
	b.order(start(3, 3, "1-120", "1-60"))
	b.pass(5 * time.Second)
	if f := one[events.WorkloadFailed](b); !strings.Contains(f.Why, "no checkpoint to start from") {
		t.Errorf("failed %+v, want a refusal to begin from nothing", f)
	}
}

func TestFailureCarriesTheEndOfTheLogWithoutSecrets(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	o := start(1, 1, "", "")
	o.Start.Env = map[string]string{"API_KEY": "hunter2", "DB": "postgres://u:s3cret@db/x", "MODE": "fast"}
	b.order(o)
	b.pass(70 * time.Second)
	b.m.Fail(3, strings.Repeat("noise\n", 5000)+"login hunter2 at postgres://u:s3cret@db/x fast\npanic: "+strings.Repeat("x", 5000)+"\n")
	b.pass(5 * time.Second)
	f := one[events.WorkloadFailed](b)
	if f.Code != 3 || len(f.Why) > 4<<10 {
		t.Errorf("code %d and %d bytes, want 3 and at most 4 KiB", f.Code, len(f.Why))
	}
	b2 := newBed(t)
	b2.pass(time.Second)
	b2.order(o)
	b2.pass(70 * time.Second)
	b2.m.Fail(3, strings.Repeat("noise\n", 50)+"login hunter2 at postgres://u:s3cret@db/x fast\n")
	b2.pass(5 * time.Second)
	why := one[events.WorkloadFailed](b2).Why
	if strings.Contains(why, "hunter2") || strings.Contains(why, "s3cret") || !strings.Contains(why, "fast") || strings.Count(why, "\n") != 19 {
		t.Errorf("why %q, want 20 lines with both secrets masked", why)
	}
}

func TestStaleSaverEndsItsRun(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(70 * time.Second)
	other := newBed(t)
	other.opts.Store = b.store
	other.m = agenttest.New(other.opts)
	other.pass(time.Second)
	other.order(start(1, 2, "1-60", ""))
	other.pass(time.Second)
	b.pass(time.Minute) // its next save is refused
	if b.m.Alive() != 0 {
		t.Error("a run whose epoch is over goes on")
	}
	if s := one[events.WorkloadStopped](b); s.Saved.ID != "1-60" {
		t.Errorf("stopped with %+v, want 1-60", s.Saved)
	}
}

func TestUploadIsTriedAgainUntilItIsDurable(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.store.Fail(errStore)
	b.pass(70 * time.Second)
	b.order(fleet.Order{Number: 2, Epoch: 1, Save: &fleet.Save{ID: "s"}, Stop: true})
	b.pass(5 * time.Minute)
	if n := len(facts[events.WorkloadStopped](b)); n != 0 {
		t.Fatal("stopped was said though nothing is durable")
	}
	if n := len(facts[events.CheckpointFailed](b)); n < 3 || n > 7 {
		t.Errorf("failed was said %d times in 5 minutes, want about once a minute", n)
	}
	b.store.Fail(nil)
	b.pass(2 * time.Minute)
	if s := one[events.WorkloadStopped](b); s.Saved.Step < 70 {
		t.Errorf("stopped with %+v, want the checkpoint at the stop", s.Saved)
	}
}

var errStore = errString("the bucket is out of reach")

type errString string

func (e errString) Error() string { return string(e) }

func TestARunWhoseCheckpointCanNeverBeSavedEndsWithWhatIsDurable(t *testing.T) {
	for name, broken := range map[string]error{"unfit": agent.ErrUnfit, "changes": agent.ErrChanged} {
		b := newBed(t)
		b.pass(time.Second)
		b.order(start(1, 1, "", ""))
		b.pass(70 * time.Second)
		b.store.Fail(fmt.Errorf("%w: file \"pw\": links out of it", broken))
		o := start(2, 1, "", "")
		o.Save, o.Stop = &fleet.Save{ID: "s"}, true
		b.order(o)
		b.pass(time.Minute)
		if s := one[events.WorkloadStopped](b); s.Saved.Step != 60 {
			t.Errorf("%s: stopped with %+v, want step 60", name, s.Saved)
		}
		told := facts[events.CheckpointFailed](b)
		if last := told[len(told)-1]; last.Save != "s" || !strings.Contains(last.Why, "links out of it") {
			t.Errorf("%s: told %+v, want the order answered with the cause", name, told)
		}
		if n := len(facts[events.CheckpointFailed](b)); n > 3 {
			t.Errorf("%s: told %d times", name, n)
		}
	}
}

func TestAStoreThatTakesNothingHoldsARunThatIsToEndForAQuarterOfAnHour(t *testing.T) {
	for _, finished := range []bool{false, true} {
		b := newBed(t)
		if finished {
			b.steps = 90
		}
		b.pass(time.Second)
		b.order(start(1, 1, "", ""))
		b.pass(70 * time.Second)
		b.store.Fail(errStore)
		b.pass(time.Hour) // nobody wants it to end: it is tried again and again
		if n := len(facts[events.WorkloadFinished](b)); n != 0 {
			t.Fatal("finished was said though its result is not durable and nobody wants the machine")
		}
		o := start(2, 1, "", "")
		o.Save, o.Stop = &fleet.Save{ID: "s"}, true
		b.order(o)
		b.pass(14 * time.Minute)
		if h := b.last(); h.Run.Phase != fleet.Running {
			t.Fatalf("heard %+v, want it to wait for the store", h.Run)
		}
		b.pass(2 * time.Minute)
		if h := b.last(); !h.Run.Phase.Over() || h.Saved.Step != 60 {
			t.Errorf("finished %v: heard %+v, want it over with what is durable", finished, h)
		}
		told := facts[events.CheckpointFailed](b)
		if last := told[len(told)-1]; last.Save != "s" || !strings.Contains(last.Why, errStore.Error()) {
			t.Errorf("told %+v, want the order answered with the cause", last)
		}
	}
}

func TestASaveOfARunThatGoesOnIsAnsweredWhereThereCanBeNone(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.store.Fail(agent.ErrUnfit)
	b.pass(70 * time.Second)
	o := start(2, 1, "", "")
	o.Save = &fleet.Save{ID: "s"}
	b.order(o)
	b.pass(5 * time.Second)
	told := facts[events.CheckpointFailed](b)
	if last := told[len(told)-1]; last.Save != "s" || b.m.Alive() != 1 {
		t.Errorf("told %+v, epoch %d alive; want the order answered and the run going on", told, b.m.Alive())
	}
}

// forgetful begins anew whatever it is restored from.
type forgetful struct{ chain }

func (*forgetful) Load([]byte) error { return nil }

func TestAJobThatCountsFromTheBeginningAgainIsToldOnce(t *testing.T) {
	b := newBed(t)
	b.pass(time.Second)
	b.order(start(1, 1, "", ""))
	b.pass(130 * time.Second)
	b.opts.Job = func(string, map[string]string) agenttest.Job { return &forgetful{chain{of: 1000}} }
	b.m = agenttest.New(b.opts)
	b.pass(time.Second)
	o := start(2, 2, "1-120", "1-60")
	o.Start.SaveEvery = 7 * time.Second // each mark is another
	b.order(o)
	b.forget()
	b.pass(110 * time.Second)
	if why := one[events.CheckpointFailed](b).Why; !strings.Contains(why, "below 120") {
		t.Errorf("why %q, want the step named that it was restored at", why)
	}
}
