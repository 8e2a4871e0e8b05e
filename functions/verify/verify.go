// Package verify judges benchmarks: a machine that does not reach 90 % of its rated speed is not what was paid for.
//
// It promises that only an answer to an order counts: the nonce must have been given to that machine, the first answer
// to it stands, and one that came faster than the work it claims, or whose product does not follow from the nonce, is
// refused. A measurement that cannot tell lets the machine through with a note: doubt never ends a machine. A device that
// was rejected is known again by its UUID for a week, on whatever machine it comes back. What is said again is judged the
// same and said again.
// It ends nothing and buys nothing: rebalance does.
package verify

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
	"lowtide/shared/gpu"
	"lowtide/shared/gpu/product"
	"lowtide/shared/store"
)

// Least is the share of the rated speed that a machine must reach.
const Least = 0.90

// record is what is remembered of an order.
type record struct {
	Nonce   string                    `json:"nonce"`
	Suite   string                    `json:"suite,omitempty"`
	Given   time.Time                 `json:"given"`
	Answer  *events.BenchmarkFinished `json:"answer,omitempty"` // the first; it stands
	Heard   time.Time                 `json:"heard,omitzero"`
	Refused string                    `json:"refused,omitempty"` // why the answer does not count
	Known   string                    `json:"known,omitempty"`   // a device of it was rejected before
}

type judge struct {
	orders store.Bucket
	o      Options
}

// Options are what need not be said. The zero Options work.
type Options struct {
	Real    func(time.Duration) time.Duration // turns lowtide's time into the wall time that a runner measures; nil: they are the same
	Profile func(backend string) gpu.Profile  // what an answer must show at least; nil: gpu.ProfileOf
}

// Kept is how long a machine's order and its answer, and a rejected device, are remembered after the last word on them;
// JetStream's buckets drop them then. A benchmark takes minutes, and an order without an answer is given up within the
// hour.
const Kept = 7 * 24 * time.Hour

// New makes the function. orders is its own bucket: a key a machine, and one a rejected device.
func New(orders store.Bucket, o Options) fn.Function {
	if o.Real == nil {
		o.Real = func(d time.Duration) time.Duration { return d }
	}
	if o.Profile == nil {
		o.Profile = gpu.ProfileOf
	}
	j := judge{store.Expiring(orders, func(string, []byte) time.Duration { return Kept }), o}
	return fn.New("verify", fn.Hear(j.ordered), fn.Hear(j.finished))
}

// ordered remembers a nonce. An order that is said again changes nothing.
func (j judge) ordered(ctx context.Context, o events.OrderGiven) ([]events.Event, error) {
	b := o.Order.Benchmark
	if b == nil {
		return nil, nil
	}
	r, rev, err := j.read(ctx, o.Machine)
	if err != nil || r.Nonce == b.Nonce {
		return nil, err
	}
	return nil, j.write(ctx, o.Machine, record{Nonce: b.Nonce, Suite: b.Suite, Given: fn.Now(ctx)}, rev)
}

// finished judges an answer.
func (j judge) finished(ctx context.Context, b events.BenchmarkFinished) ([]events.Event, error) {
	r, rev, err := j.read(ctx, b.Machine)
	if err != nil {
		return nil, err
	}
	if r.Nonce != b.Nonce || b.Nonce == "" {
		if r.Nonce == "" {
			return nil, fmt.Errorf("benchmark of %s came before its order was heard", b.Machine) // the order may be on its way
		}
		return nil, nil // of an order that was replaced, or of nobody's
	}
	if r.Answer == nil {
		r.Answer, r.Heard = &b, fn.Now(ctx)
		if r.Refused = j.impossible(b, r.Suite, j.o.Real(r.Heard.Sub(r.Given))); r.Refused == "" {
			if r.Known, err = j.known(ctx, b, r.Heard); err != nil {
				return nil, err
			}
		}
		if err := j.write(ctx, b.Machine, r, rev); err != nil {
			return nil, err
		}
	}
	said := verdict(r)
	if rejected, ok := said.(events.InstanceRejected); ok {
		if err := j.remember(ctx, r, rejected); err != nil {
			return nil, err
		}
	}
	d := fn.From(ctx)
	// The source tells repeats apart, so that a verdict that was lost is heard when it is asked for again.
	source := fmt.Sprintf("verify/%d", d.Seq)
	return []events.Event{events.New(d.Event.Fleet, source, d.At, said)}, nil
}

// impossible says why an answer cannot be one to the order; "" if it can. took is the wall time between the two. A runner
// that could not run, or refused a machine at once, claims no work; one that says "pass" must show all of it.
func (j judge) impossible(b events.BenchmarkFinished, suite string, took time.Duration) string {
	took += time.Second // two clocks
	passed := b.Verdict == "pass"
	switch {
	case b.Error != "":
		return ""
	case b.Suite != suite:
		return fmt.Sprintf("suite %q was ordered, %q was run", suite, b.Suite)
	case b.Elapsed > took:
		return fmt.Sprintf("claims %s of work within %s", b.Elapsed.Round(time.Millisecond), took.Round(time.Millisecond))
	case passed && len(b.Devices) == 0:
		return "passed without a device"
	case !passed:
		return ""
	}
	want := j.o.Profile(b.Backend)
	var parts []product.Part
	for _, d := range b.Devices {
		if peak := datasheet(d.Name); peak > 0 && d.Measured > farAbove*peak {
			return fmt.Sprintf("%s with %.0f TFLOPS, when its peak is %.0f", d.Name, d.Measured, peak)
		}
		parts = append(parts, product.Part{Work: d.Work, Checksum: d.Checksum})
	}
	if err := (product.Order{Nonce: b.Nonce, Size: want.Size, Work: want.Measure}).Check(b.Size, parts, took); err != nil {
		return err.Error()
	}
	return ""
}

// farAbove the datasheet's peak nothing measures.
const farAbove = 1.25

func datasheet(name string) float64 {
	r, _ := gpu.ByName(name)
	return r.Datasheet
}

// verdict judges the answer that stands: what passes must pass the workload's own check too.
func verdict(r record) events.Fact {
	said := measured(r)
	passed, ok := said.(events.InstanceVerified)
	if f := r.Answer.Framework; ok && f != nil && f.Code != 0 {
		return events.InstanceRejected{
			Machine: passed.Machine, Nonce: passed.Nonce, Ratio: passed.Ratio, Took: passed.Took,
			Cause: fmt.Sprintf("%s: verify.command ended with status %d:\n%s", events.CauseFramework, f.Code, f.Tail),
		}
	}
	return said
}

// measured judges the benchmark.
func measured(r record) events.Fact {
	b := r.Answer
	ratio, lower, upper := worst(b.Devices)
	took := r.Heard.Sub(r.Given)
	reject := func(cause string) events.Fact {
		return events.InstanceRejected{Machine: b.Machine, Nonce: b.Nonce, Ratio: ratio, Cause: cause, Took: took}
	}
	pass := func(note string) events.Fact {
		return events.InstanceVerified{Machine: b.Machine, Nonce: b.Nonce, Ratio: ratio, Note: note, Took: took}
	}
	causes := strings.Join(b.Causes, "; ")
	switch {
	case r.Refused != "":
		return reject("impossible answer: " + r.Refused)
	case b.Error != "":
		return reject("the benchmark could not run: " + b.Error)
	case r.Known != "":
		return reject(r.Known)
	case b.Verdict == "fail" && upper >= Least && len(b.Causes) == 0:
		return pass("the runner said fail without a cause, and its own figures do not bear it out")
	case b.Verdict == "fail":
		if causes == "" {
			causes = fmt.Sprintf("%.0f %% of rated at most, %.0f %% are needed", 100*upper, 100*Least)
		}
		return reject(causes)
	case b.Verdict == "pass" && len(b.Devices) > 0 && lower > 0 && upper < Least:
		return reject(fmt.Sprintf("the runner said pass, and measured %.0f %% of rated at most", 100*upper))
	case b.Verdict == "pass" && upper == 0:
		return pass("no device has a rated speed to compare with")
	case b.Verdict == "pass" && lower < Least:
		return pass(fmt.Sprintf("the runner said pass, and its figures do not decide it: %.0f to %.0f %% of rated", 100*lower, 100*upper))
	case b.Verdict == "pass":
		return pass("")
	}
	return pass("not decided: " + causes)
}

// worst is the slowest device's ratio and bounds; 0 where nothing was rated.
func worst(devices []events.Device) (ratio, lower, upper float64) {
	ratio = math.Inf(1)
	for _, d := range devices {
		if d.Rated > 0 && d.Ratio < ratio {
			ratio, lower, upper = d.Ratio, d.Lower, d.Upper
		}
	}
	if math.IsInf(ratio, 1) {
		return 0, 0, 0
	}
	return ratio, lower, upper
}

func (j judge) read(ctx context.Context, machine string) (record, uint64, error) {
	var r record
	rev, err := store.Load(ctx, j.orders, events.Token(machine), &r)
	if err != nil {
		return r, 0, fmt.Errorf("read the benchmark order of %s: %w", machine, err)
	}
	return r, rev, nil
}

func (j judge) write(ctx context.Context, machine string, r record, rev uint64) error {
	if _, err := store.Save(ctx, j.orders, events.Token(machine), r, rev); err != nil {
		return fmt.Errorf("keep the benchmark of %s: %w", machine, err)
	}
	return nil
}
