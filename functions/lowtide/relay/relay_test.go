package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/lowtide/relay"
	"lowtide/functions/rules"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/fn/lambda"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func beat(n uint64) events.Event {
	return events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: n})
}

// elsewhere is a function at the other end of invocations.
type elsewhere struct {
	mu    sync.Mutex
	calls [][]lambda.Message
	seen  []uint64 // beats in order of arrival
	do    func(call int, in lambda.Batch) (any, error)
}

func (e *elsewhere) invoke(_ context.Context, _ string, body []byte) ([]byte, error) {
	var in lambda.Batch
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	e.mu.Lock()
	e.calls = append(e.calls, in.Messages)
	n := len(e.calls)
	for _, m := range in.Messages {
		if ev, err := events.Decode(m.Body); err == nil {
			if b, ok := ev.Data.(events.MachineHeard); ok {
				e.seen = append(e.seen, b.Beat)
			}
		}
	}
	e.mu.Unlock()
	answer, err := e.do(n, in)
	if err != nil {
		return nil, err
	}
	if raw, ok := answer.(string); ok {
		return []byte(raw), nil
	}
	return json.Marshal(answer)
}

func (e *elsewhere) beats() []uint64 { e.mu.Lock(); defer e.mu.Unlock(); return slices.Clone(e.seen) }
func (e *elsewhere) count() int      { e.mu.Lock(); defer e.mu.Unlock(); return len(e.calls) }

// all is the answer of a function that handled everything.
func all(in lambda.Batch) lambda.Answer {
	a := lambda.Answer{Handled: []uint64{}}
	for _, m := range in.Messages {
		a.Handled = append(a.Handled, m.Seq)
	}
	return a
}

func hears(name string, batch int, kinds ...events.Kind) relay.Route {
	return relay.Route{Function: fn.Function{Name: name, Hears: kinds, Batch: batch}}
}

// start runs a relay until its result is called.
func start(t *testing.T, s *embedded.Server, e *elsewhere, routes ...relay.Route) (stop func()) {
	t.Helper()
	nc, _ := natstest.Connect(t, s)
	r := relay.New(nc, e.invoke, routes, relay.Options{Fleet: "f", Log: quiet})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Serve(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}

func say(t *testing.T, js jetstream.JetStream, said ...events.Event) {
	t.Helper()
	if _, err := bus.Publish(context.Background(), js, said...); err != nil {
		t.Fatal(err)
	}
}

func dead(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	s, err := js.Stream(context.Background(), bus.Dead)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func TestOnlyWhatTheFunctionAnsweredForIsDone(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		say(t, js, beat(1), beat(2), beat(3), beat(4))
		tries := map[uint64]int{}
		e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) {
			a := lambda.Answer{Handled: []uint64{}}
			for _, m := range in.Messages {
				tries[m.Seq]++
				switch {
				case m.Seq == 2 && tries[2] < 3:
					a.Failed = append(a.Failed, lambda.Failure{Seq: 2, Why: "away", Passing: true})
				case m.Seq == 3:
					a.Failed = append(a.Failed, lambda.Failure{Seq: 3, Why: "not ours", Dead: true})
				case m.Seq == 4 && tries[4] < 2: // not named at all
				default:
					a.Handled = append(a.Handled, m.Seq)
				}
			}
			return a, nil
		}}
		start(t, s, e, hears("x", 8, "machine.heard"))
		time.Sleep(2 * time.Minute)
		if want := map[uint64]int{1: 1, 2: 3, 3: 1, 4: 2}; fmt.Sprint(tries) != fmt.Sprint(want) {
			t.Errorf("tried %v, want %v", tries, want)
		}
		if n := dead(t, js); n != 1 {
			t.Errorf("%d dead letters, want the one that the function called dead", n)
		}
	})
}

func TestWhatIsNoAnswerLeavesTheMessageOpen(t *testing.T) {
	for name, answer := range map[string]any{
		"TimedOut": "Task timed out after 8.00 seconds", "Nothing": "", "Null": "null", "AnEmptyDocument": "{}", "AList": "[1]",
		"AFailure": `{"errorMessage":"nil map","errorType":"runtimeError"}`,
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
				_, js := natstest.Connect(t, s)
				say(t, js, beat(1))
				e := &elsewhere{}
				e.do = func(call int, in lambda.Batch) (any, error) {
					if call < 3 {
						return answer, nil
					}
					return all(in), nil
				}
				start(t, s, e, hears("x", 8, "machine.heard"))
				time.Sleep(time.Minute)
				if n := e.count(); n != 3 || dead(t, js) > 0 {
					t.Errorf("%d calls, want 3: two that told nothing and one that answered", n)
				}
			})
		})
	}
}

func TestAFunctionThatCannotBeReachedForAnHourLosesNothing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		back := time.Now().Add(time.Hour)
		e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) {
			if time.Now().Before(back) {
				return nil, fmt.Errorf("%w: status 429", fn.ErrPassing)
			}
			return all(in), nil
		}}
		fold := hears("fold", 8, "machine.heard")
		fold.Folds = true
		start(t, s, e, fold)
		for n := range uint64(20) {
			say(t, js, beat(n+1))
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Hour)
		seen := e.beats()
		var last []uint64
		for _, n := range seen { // the last time that each was handed on
			last = append(slices.DeleteFunc(last, func(m uint64) bool { return m == n }), n)
		}
		if len(last) != 20 || !slices.IsSorted(last) || dead(t, js) > 0 {
			t.Errorf("handed on last %v, %d dead; want 1 to 20 in order", last, dead(t, js))
		}
	})
}

func TestSeveralRelaysShareAFoldInOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		var mu sync.Mutex
		var pos uint64
		var counted []uint64
		busy := false
		e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) {
			mu.Lock()
			if busy {
				t.Error("two batches at once")
			}
			busy = true
			mu.Unlock()
			time.Sleep(30 * time.Millisecond) // fake
			mu.Lock()
			defer mu.Unlock()
			busy = false
			for _, m := range in.Messages {
				if m.Seq > pos {
					pos = m.Seq
					counted = append(counted, m.Seq)
				}
			}
			return all(in), nil
		}}
		fold := hears("fold", 4, "machine.heard")
		fold.Folds, fold.Concurrency = true, 5
		first := start(t, s, e, fold)
		start(t, s, e, fold)
		for n := range uint64(60) {
			say(t, js, beat(n+1))
			if n == 30 {
				first()
			}
			time.Sleep(10 * time.Millisecond) // fake
		}
		time.Sleep(time.Minute)
		if len(counted) != 60 || !slices.IsSorted(counted) {
			t.Errorf("counted %v, want 1 to 60", counted)
		}
	})
}

func TestAStopWaitsForTheInvocationsInFlight(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) {
			time.Sleep(10 * time.Second) // fake: within the grace
			return all(in), nil
		}}
		stop := start(t, s, e, hears("x", 1, "machine.heard"))
		say(t, js, beat(1))
		time.Sleep(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took < 8*time.Second || took > 12*time.Second {
			t.Errorf("stopped after %v, want when the invocation had answered", took)
		}
		start(t, s, e, hears("x", 1, "machine.heard"))
		time.Sleep(time.Minute)
		if n := e.count(); n != 1 {
			t.Errorf("%d calls, want one: its answer was taken", n)
		}
	})
}

func TestALargeBatchIsHandedOnInParts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		for n := range 40 { // 40 x 200 kB
			say(t, js, events.New("f", "test", time.Time{}, events.WorkloadFailed{Workload: fmt.Sprint("w", n), Why: strings.Repeat("x", 200<<10)}))
		}
		largest := 0
		e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) { return all(in), nil }}
		measured := &elsewhere{do: e.do}
		nc, _ := natstest.Connect(t, s)
		fold := hears("fold", 64, "workload.failed")
		fold.Folds = true
		r := relay.New(nc, func(ctx context.Context, name string, body []byte) ([]byte, error) {
			largest = max(largest, len(body))
			return measured.invoke(ctx, name, body)
		}, []relay.Route{fold}, relay.Options{Fleet: "f", Log: quiet})
		ctx, cancel := context.WithCancel(context.Background())
		var ended sync.WaitGroup
		ended.Go(func() { _ = r.Serve(ctx) })
		time.Sleep(time.Minute)
		cancel()
		ended.Wait()
		n := 0
		for _, c := range measured.calls {
			n += len(c)
		}
		if n != 40 || largest > 6_000_000 {
			t.Errorf("%d messages, the largest invocation %d bytes; want 40, and AWS takes 6 MB", n, largest)
		}
	})
}

func TestOnlyALaunchThatNobodyWasGivenIsDroppedForBeingLate(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		expired := time.Now().Add(-time.Minute)
		made := func(id string, action fleet.Action, attempt int, expires time.Time) events.Event {
			return events.New("f", "rebalance", time.Time{}, events.PlanMade{Attempt: attempt, Plan: fleet.Plan{
				ID: id, Action: action, Machine: "m-" + id, Cloud: "aws", Account: "main", Expires: expires,
			}})
		}
		say(t, js,
			made("late", fleet.Launch, 1, expired), made("again", fleet.Launch, 2, expired), made("fresh", fleet.Launch, 1, time.Now().Add(time.Hour)),
			made("end", fleet.End, 1, expired),
			events.New("f", "rebalance", time.Time{}, events.OrderGiven{Machine: "m", Order: fleet.Order{Number: 1, Stop: true, Save: &fleet.Save{ID: "s", By: expired}}}))
		var given []string
		e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) {
			for _, m := range in.Messages {
				ev, err := events.Decode(m.Body)
				if err != nil {
					return nil, err
				}
				given = append(given, string(ev.Data.Kind())+" "+ev.Data.Key())
			}
			return all(in), nil
		}}
		r := hears("provision", 8, "plan.made", "order.given")
		r.Folds, r.Late = true, relay.LateLaunch
		start(t, s, e, r)
		synctest.Wait()
		time.Sleep(time.Second)
		slices.Sort(given)
		if want := []string{"order.given m", "plan.made aws.main.again", "plan.made aws.main.end", "plan.made aws.main.fresh"}; !slices.Equal(given, want) {
			t.Errorf("given %q, want %q", given, want)
		}
		m, err := bus.Last(context.Background(), js, bus.Facts, "lowtide.f.plan.failed.>")
		if err != nil {
			t.Fatal(err)
		}
		if f := m.Event.Data.(events.PlanFailed); f.Plan != "late" || f.Machine != "m-late" || !strings.Contains(f.Why, "late") {
			t.Errorf("said %+v, want that the late one failed", f)
		}
	})
}

func TestTheFunctionGetsTheBytesAsTheyCame(t *testing.T) {
	s := natstest.Start(t, embedded.Options{})
	_, js := natstest.Connect(t, s)
	// Of a newer version: a field, an attribute and a kind that this one does not know.
	raw := `{"specversion":"1.0","id":"x","type":"lowtide.machine.heard","source":"s","subject":"m","time":"2026-01-01T00:00:00Z","datacontenttype":"application/json","dataversion":7,"fleet":"f","newattribute":"<&>","data":{"machine":"m","beat":7,"new":{"a":[1]}}}`
	if _, err := js.Publish(t.Context(), "lowtide.f.machine.heard.m", []byte(raw)); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	e := &elsewhere{do: func(_ int, in lambda.Batch) (any, error) {
		got <- string(in.Messages[0].Body)
		return all(in), nil
	}}
	start(t, s, e, hears("x", 8, "machine.heard"))
	if b := <-got; b != raw {
		t.Errorf("handed on %s, want %s", b, raw)
	}
}

func TestAnInvocationTellsFailuresApart(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		header  string
		body    string
		passing bool
		ok      bool
	}{
		"Answered":       {200, "", `{"handled":[]}`, false, true},
		"FunctionError":  {200, "Unhandled", `{"errorMessage":"x"}`, false, false},
		"EmulatorsError": {200, "", `{"errorMessage":"x","errorType":"y"}`, false, false},
		"Throttled":      {429, "", `{}`, true, false},
		"NotThere":       {404, "", `{}`, true, false},
		"Denied":         {403, "", `{}`, true, false},
		"LambdasOwn":     {500, "", `{}`, true, false},
		"TooLarge":       {413, "", `{}`, false, false},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/2015-03-31/functions/function/invocations" {
				t.Errorf("asked %s", r.URL.Path)
			}
			if c.header != "" {
				w.Header().Set("X-Amz-Function-Error", c.header)
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}))
		_, err := relay.Local(map[string]string{"x": srv.URL}, nil)(t.Context(), "x", []byte("{}"))
		srv.Close()
		if (err == nil) != c.ok || errors.Is(err, fn.ErrPassing) != c.passing {
			t.Errorf("%s: %v; want passing %v", name, err, c.passing)
		}
	}
	if _, err := relay.Local(map[string]string{"x": "http://127.0.0.1:1"}, nil)(t.Context(), "x", nil); !errors.Is(err, fn.ErrPassing) {
		t.Errorf("nobody there: %v, want passing", err)
	}
}

func TestAnAWSInvocationIsSignedAndNamesTheStacksFunction(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/2015-03-31/functions/prod-rebalance/invocations" || !strings.Contains(r.Header.Get("Authorization"), "/eu-west-1/lambda/aws4_request") {
			t.Errorf("asked %s with %v", r.URL.Path, r.Header)
		}
		_, _ = io.WriteString(w, `{"handled":[]}`)
	}))
	defer srv.Close()
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "not-a-key")
	invoke, err := relay.Lambda(t.Context(), "eu-west-1", "prod-", srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := invoke(t.Context(), "rebalance", []byte("{}")); err != nil {
		t.Fatal(err)
	}
}

func TestEveryFunctionThatHearsHasARoute(t *testing.T) {
	own, err := rules.Parse("rules.yaml", []byte("rules: [{name: a, fact: workload.idle, do: [{webhook: {url: 'https://hooks.test'}}]}]"), rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	routes, err := relay.Routes("f", []string{"aws/main", "vast/x"}, own)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range routes {
		names = append(names, r.Name+" "+r.Key)
		if r.Slow < 30*time.Second || len(r.Hears) == 0 || r.Batch < 2 {
			t.Errorf("%s: batch %d, %v, hears %v", r.Name, r.Batch, r.Slow, r.Hears)
		}
	}
	slices.Sort(names)
	want := []string{
		"census ", "intake ", "ledger ", "notices ", "notify ", "notify-channels ", "prices ", "provision aws.main.>", "provision vast.x.>", "provision-twins ",
		"rebalance ", "rules ", "rules-hooks ", "usage ", "verify ",
	}
	if !slices.Equal(names, want) {
		t.Errorf("routes %q, want %q", names, want)
	}
	if _, err := relay.Routes("f", []string{"aws"}, nil); err == nil {
		t.Error("an account without a cloud was taken")
	}
}
