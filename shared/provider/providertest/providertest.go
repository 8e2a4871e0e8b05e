// Package providertest is the conformance suite of shared/provider: every adapter passes it through a stand-in of its
// vendor's HTTP API over the fake cloud.
//
// It promises to check what callers rely on for money: one token buys once, lists are complete or errors, ends may be
// repeated, labels come back, errors are of the closed list, and others' machines are never written to; and, as the
// fault round, what happens when the vendor is throttled, down, half heard, out of date or wrong.
// It measures nothing and knows no cloud.
//
// # A new cloud in five steps
//
// vast is the pattern for a cloud without tokens and with JSON, aws for one with tokens, signatures and many regions.
// An adapter imports shared/fleet, shared/provider and its vendor's signer, never another adapter.
//
//  1. shared/provider/<cloud>: Settings (plain data, no environment), New, and the five methods of provider.Provider in
//     <cloud>.go; requests, types and pages in wire.go; the vendor's error codes in problem.go. Send through
//     provider.Exchange, which knows what a lost answer means; walk pages with provider.Pages; read GPU names with
//     provider.ReadCard (add names to its table); mark machines with Labels.Tags, or Labels.Text where there is but a
//     name; start the agent with Boot.Script. Prices are decimals with the unit that the vendor means: per machine, GPU,
//     month or term. Missing, zero and placeholder are no offer. What must be paid for a term has Offer.Term and cannot
//     be launched. Nothing retries, waits for the vendor's health or reads the clock but through Settings.Now.
//     A cloud without tokens looks for its label before it buys. A purchase whose answer is lost is ErrUnknown; a lost
//     answer to an end or a read is ErrUnavailable. Export Reads, the requests that change nothing.
//  2. shared/provider/<cloud>/<cloud>test: the stand-in. Market() is a fake.Config of what is sold, New(cloud, knobs) an
//     http.Handler: it checks the signature or key by its own reckoning, refuses unknown and missing fields, pages its
//     lists in small pages, says the fake cloud's errors in the vendor's words (aborts the connection for ErrUnknown),
//     and heeds fake.Knobs: Expired, Loop, Swap, Skew, and Left where disks or addresses come along.
//  3. shared/provider/<cloud>/<cloud>_test.go: a Vendor and its Run. Then what is the cloud's own: the unit traps of its
//     prices, its machine states, leftovers of a failed create; against the vendor's printed bytes in testdata, written to
//     the documented schema; and, where one is on PyPI or npm, the vendor's own client against the stand-in (skip with
//     the reason on a machine without it, fail when CI is set).
//  4. shared/provider/all: one row of builders, one open function; document its variables in the package comment. What is
//     missing is one line; a cloud without settings is skipped, never an error.
//  5. The README's table of clouds: what is offered, launched and noticed, and how that was verified.
package providertest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// World is the account behind an adapter, as the suite can see and move it. All fields are needed but those that say
// otherwise.
type World struct {
	// Fail makes the next call ("offers", "launch", "list", "end") answer with an error of the closed list. For
	// provider.ErrUnknown the call takes effect before its answer is lost. Outcomes that cannot be are refused by false.
	Fail func(call string, err error) bool
	// Pass lets time go by, as the account sees it.
	Pass func(d time.Duration)
	// Bought lists the ids of all machines that the account ever bought through the adapter, ended ones too.
	Bought func() []string
	// Written lists the ids that a writing call other than a launch was made on.
	Written func() []string
	// Foreign are the ids of others' machines; at least one.
	Foreign []string
	// EndTakes is how long an end takes at most.
	EndTakes time.Duration
	// Nobody is a well-formed id that no machine has; "": "i-999999".
	Nobody string
}

func (w *World) nobody() string { return cmp.Or(w.Nobody, "i-999999") }

// Labels are what the suite's machines carry.
func Labels(plan string) provider.Labels {
	return provider.Labels{Fleet: "f1", Install: "0123456789abcdef", Plan: plan, Machine: "f1-m-" + plan, Workload: "train_a"}
}

// Run runs the suite; open makes a fresh account for each case.
func Run(t *testing.T, open func(t *testing.T) (provider.Provider, *World)) {
	for name, check := range map[string]func(*testing.T, provider.Provider, *World){
		"OffersNameTheCloudAndAPrice":          offers,
		"OneTokenBuysOnce":                     oneToken,
		"ALostAnswerBuysOnce":                  lostAnswer,
		"OneTokenWithOtherParametersIsInvalid": otherParameters,
		"LabelsComeBack":                       labels,
		"TheListShowsAllAfterTheListingDelay":  complete,
		"AListThatFailsShowsNothing":           failedList,
		"AnEndMayBeRepeated":                   repeatedEnd,
		"AnEndOfNothingIsNotFoundOrNothing":    unknownEnd,
		"ErrorsAreOfTheClosedList":             closedErrors,
		"OthersMachinesAreListedAndUntouched":  foreign,
		"ARefusalBuysNothing":                  refusal,
		"WhatIsBoughtIsWhatWasAsked":           readBack,
	} {
		t.Run(name, func(t *testing.T) {
			p, w := open(t)
			check(t, p, w)
		})
	}
}

// request asks for the first offer that is to be had.
func request(t *testing.T, p provider.Provider, plan string) provider.Request {
	t.Helper()
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatalf("offers: %v", err)
	}
	i := slices.IndexFunc(all, func(o fleet.Offer) bool { return o.Stock.Or(1) > 0 })
	if i < 0 {
		t.Fatalf("no offer to be had among %d", len(all))
	}
	return provider.Request{
		Token: "token-" + plan, Name: "f1-m-" + plan, Offer: all[i], Labels: Labels(plan), UserData: "A=1\nB=two words\n",
	}
}

func launch(t *testing.T, p provider.Provider, want provider.Request) provider.Machine {
	t.Helper()
	m, err := p.Launch(t.Context(), want)
	if err != nil {
		t.Fatalf("launch %s: %v", want.Offer, err)
	}
	if m.ID == "" {
		t.Fatalf("launch %s: no id in %+v", want.Offer, m)
	}
	return m
}

func list(t *testing.T, p provider.Provider) map[string]provider.Machine {
	t.Helper()
	all, err := p.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	byID := map[string]provider.Machine{}
	for _, m := range all {
		if _, twice := byID[m.ID]; twice {
			t.Errorf("%s is listed twice", m.ID)
		}
		byID[m.ID] = m
	}
	return byID
}

func offers(t *testing.T, p provider.Provider, _ *World) {
	all, err := p.Offers(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatalf("offers: got %d and %v, want some", len(all), err)
	}
	tr := p.Traits()
	for _, o := range all {
		if o.Cloud != tr.Cloud || o.Account != tr.Account {
			t.Errorf("%s: cloud %q and account %q, want %q and %q", o, o.Cloud, o.Account, tr.Cloud, tr.Account)
		}
		if o.Type == "" || o.Region == "" || o.Market == "" || o.Price.Amount.Currency == "" || o.Price.Per == "" {
			t.Errorf("%s: type, region, market, currency or unit is missing: %+v", o, o)
		}
	}
}

func oneToken(t *testing.T, p provider.Provider, w *World) {
	want := request(t, p, "p1")
	first := launch(t, p, want)
	if !p.Traits().Tokens {
		t.Log("the cloud has no tokens; provision lists instead")
		return
	}
	again := launch(t, p, want)
	if first.ID != again.ID {
		t.Errorf("one token: got %s and %s, want one machine", first.ID, again.ID)
	}
	if got := w.Bought(); len(got) != 1 {
		t.Errorf("bought %v, want one", got)
	}
}

func lostAnswer(t *testing.T, p provider.Provider, w *World) {
	want := request(t, p, "p1")
	if !w.Fail("launch", provider.ErrUnknown) {
		t.Fatal("a world must be able to lose the answer to a launch")
	}
	if _, err := p.Launch(t.Context(), want); !errors.Is(err, provider.ErrUnknown) {
		t.Fatalf("lost answer: got %v, want %v", err, provider.ErrUnknown)
	}
	if p.Traits().Tokens {
		launch(t, p, want)
	}
	if got := w.Bought(); len(got) != 1 {
		t.Fatalf("bought %v, want one", got)
	}
	w.Pass(p.Traits().ListingDelay)
	if m := list(t, p)[w.Bought()[0]]; m.Labels != want.Labels {
		t.Errorf("the bought machine is listed with %+v, want %+v: it cannot be adopted", m.Labels, want.Labels)
	}
}

func otherParameters(t *testing.T, p provider.Provider, w *World) {
	if !p.Traits().Tokens {
		t.Log("the cloud has no tokens")
		return
	}
	want := request(t, p, "p1")
	launch(t, p, want)
	want.UserData += "C=3\n"
	if _, err := p.Launch(t.Context(), want); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("other user-data under the token: got %v, want %v", err, provider.ErrInvalid)
	}
	if got := w.Bought(); len(got) != 1 {
		t.Errorf("bought %v, want one", got)
	}
}

func labels(t *testing.T, p provider.Provider, w *World) {
	want := request(t, p, "p1")
	m := launch(t, p, want)
	w.Pass(p.Traits().ListingDelay)
	if got := list(t, p)[m.ID].Labels; got != want.Labels {
		t.Errorf("labels: got %+v, want %+v", got, want.Labels)
	}
}

func complete(t *testing.T, p provider.Provider, w *World) {
	const n = 7
	for i := range n {
		launch(t, p, request(t, p, "p"+strconv.Itoa(i)))
	}
	w.Pass(p.Traits().ListingDelay)
	got := list(t, p)
	for _, id := range w.Bought() {
		if m, ok := got[id]; !ok || m.State == provider.Gone || m.Since.IsZero() {
			t.Errorf("%s: got %+v, want it listed, alive, with its begin", id, m)
		}
	}
	if len(w.Bought()) != n {
		t.Errorf("bought %d, want %d", len(w.Bought()), n)
	}
}

func failedList(t *testing.T, p provider.Provider, w *World) {
	if !w.Fail("list", provider.ErrThrottled) {
		t.Fatal("a world must be able to throttle a listing")
	}
	all, err := p.List(t.Context())
	if !errors.Is(err, provider.ErrThrottled) || len(all) != 0 {
		t.Errorf("got %d machines and %v, want none and %v", len(all), err, provider.ErrThrottled)
	}
}

func repeatedEnd(t *testing.T, p provider.Provider, w *World) {
	m := launch(t, p, request(t, p, "p1"))
	w.Pass(p.Traits().ListingDelay)
	for range 2 {
		if err := p.End(t.Context(), m.ID); err != nil {
			t.Fatalf("end: %v", err)
		}
	}
	w.Pass(w.EndTakes)
	if err := p.End(t.Context(), m.ID); err != nil && !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("end of what is gone: got %v, want none or %v", err, provider.ErrNotFound)
	}
	if got, listed := list(t, p)[m.ID]; listed && (got.State != provider.Gone || got.Until.IsZero()) {
		t.Errorf("after its end: got %+v, want it gone with its end, or not listed", got)
	}
}

func unknownEnd(t *testing.T, p provider.Provider, w *World) {
	if err := p.End(t.Context(), w.nobody()); err != nil && !errors.Is(err, provider.ErrNotFound) {
		t.Errorf("got %v, want none or %v", err, provider.ErrNotFound)
	}
}

func closedErrors(t *testing.T, p provider.Provider, w *World) {
	want := request(t, p, "p1")
	ours := launch(t, p, request(t, p, "p0")).ID
	w.Pass(p.Traits().ListingDelay)
	for _, e := range []error{
		provider.ErrNoCapacity, provider.ErrThrottled, provider.ErrUnavailable, provider.ErrDenied, provider.ErrUnknown,
	} {
		if !w.Fail("launch", e) {
			continue
		}
		if _, err := p.Launch(t.Context(), want); !errors.Is(err, e) {
			t.Errorf("launch: got %v, want %v", err, e)
		}
	}
	for _, e := range []error{provider.ErrThrottled, provider.ErrUnavailable} {
		if w.Fail("offers", e) {
			if _, err := p.Offers(t.Context()); !errors.Is(err, e) {
				t.Errorf("offers: got %v, want %v", err, e)
			}
		}
		if w.Fail("end", e) {
			if err := p.End(t.Context(), ours); !errors.Is(err, e) {
				t.Errorf("end: got %v, want %v", err, e)
			}
		}
	}
	want.Offer.Type = "no.such-type"
	want.Token = "token-invalid"
	if _, err := p.Launch(t.Context(), want); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("a type that does not exist: got %v, want %v", err, provider.ErrInvalid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.List(ctx); err == nil || provider.Word(err) == "other" {
		t.Errorf("a cancelled list: got %v, want an error of the closed list", err)
	}
}

func foreign(t *testing.T, p provider.Provider, w *World) {
	m := launch(t, p, request(t, p, "p1"))
	w.Pass(p.Traits().ListingDelay)
	got := list(t, p)
	for _, id := range w.Foreign {
		f, listed := got[id]
		if !listed {
			t.Errorf("%s is not listed: others' machines are shown", id)
		}
		if f.Labels.Install == m.Labels.Install {
			t.Errorf("%s carries our label", id)
		}
	}
	if err := p.End(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range w.Written() {
		if slices.Contains(w.Foreign, id) {
			t.Errorf("%s was written to", id)
		}
	}
	if len(w.Foreign) == 0 {
		t.Error("a world needs a machine of somebody else")
	}
}

func refusal(t *testing.T, p provider.Provider, w *World) {
	want := request(t, p, "p1")
	if !w.Fail("launch", provider.ErrNoCapacity) {
		t.Fatal("a world must be able to refuse a launch")
	}
	_, err := p.Launch(t.Context(), want)
	if !errors.Is(err, provider.ErrNoCapacity) {
		t.Fatalf("got %v, want %v", err, provider.ErrNoCapacity)
	}
	if !strings.Contains(err.Error(), p.Traits().Cloud) {
		t.Errorf("%q does not name its cloud", err)
	}
	w.Pass(p.Traits().ListingDelay)
	if got := w.Bought(); len(got) != 0 {
		t.Errorf("bought %v, want nothing", got)
	}
}

func readBack(t *testing.T, p provider.Provider, _ *World) {
	want := request(t, p, "p1")
	got := launch(t, p, want).Offer
	if got.Pool() != want.Offer.Pool() {
		t.Errorf("got %s, want %s", got.Pool(), want.Offer.Pool())
	}
}
