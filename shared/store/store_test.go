package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/store"
)

// contract is what every kind of bucket keeps.
var contract = map[string]func(t *testing.T, b store.Bucket){
	"ValuesAreWrittenOnlyOverTheirRevision":     valuesAreWrittenOnlyOverTheirRevision,
	"AWriterKnowsItsOwnWriteWhoseAnswerWasLost": aWriterKnowsItsOwnWriteWhoseAnswerWasLost,
	"ADeletedKeyIsFreeAndItsOldRevisionIsNot":   aDeletedKeyIsFreeAndItsOldRevisionIsNot,
	"OfFiftyWhoCreateOneWins":                   ofFiftyWhoCreateOneWins,
	"OfFiftyWhoUpdateOneRevisionOneWins":        ofFiftyWhoUpdateOneRevisionOneWins,
	"EveryIncrementCounts":                      everyIncrementCounts,
}

func TestMemory(t *testing.T) {
	for name, test := range contract {
		t.Run(name, func(t *testing.T) { test(t, store.Memory()) })
	}
}

func TestOneServer(t *testing.T) {
	_, js := natstest.Connect(t, natstest.Start(t, embedded.Options{}))
	for name, test := range contract {
		t.Run(name, func(t *testing.T) { test(t, open(t, js, name, 1)) })
	}
}

// Replicated streams answer conflicts with another code, and sometimes where there is none.
func TestThreeReplicas(t *testing.T) {
	_, js := natstest.Cluster(t)
	for name, test := range contract {
		t.Run(name, func(t *testing.T) { test(t, open(t, js, name, 3)) })
	}
}

func open(t *testing.T, js jetstream.JetStream, name string, replicas int) store.Bucket {
	t.Helper()
	b, err := store.Open(t.Context(), js, name, replicas)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func valuesAreWrittenOnlyOverTheirRevision(t *testing.T, b store.Bucket) {
	ctx := t.Context()
	if _, _, err := b.Get(ctx, "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of nothing: %v, want ErrNotFound", err)
	}
	rev := must(b.Create(ctx, "a", []byte("1")))
	next := must(b.Update(ctx, "a", []byte("2"), rev))
	if next <= rev {
		t.Errorf("revision went from %d to %d", rev, next)
	}
	if _, err := b.Update(ctx, "a", []byte("3"), rev); !errors.Is(err, store.ErrConflict) {
		t.Errorf("update over an old revision: %v, want ErrConflict", err)
	}
	if _, err := b.Create(ctx, "a", []byte("3")); !errors.Is(err, store.ErrConflict) {
		t.Errorf("create over a value: %v, want ErrConflict", err)
	}
	val, got, err := b.Get(ctx, "a")
	if string(val) != "2" || got != next || err != nil {
		t.Errorf("get: %q at %d, %v; want 2 at %d", val, got, err, next)
	}
	if _, err := b.Update(ctx, "absent", []byte("x"), 7); !errors.Is(err, store.ErrConflict) {
		t.Errorf("update of nothing: %v, want ErrConflict", err)
	}
	if _, err := b.Create(ctx, "no key", nil); !errors.Is(err, store.ErrKey) {
		t.Errorf("create of a bad key: %v, want ErrKey", err)
	}
}

func aWriterKnowsItsOwnWriteWhoseAnswerWasLost(t *testing.T, b store.Bucket) {
	ctx := t.Context()
	rev := must(b.Create(ctx, "a", []byte("w1/1")))
	if again, err := b.Create(ctx, "a", []byte("w1/1")); err != nil || again != rev {
		t.Errorf("create again: %d, %v; want %d", again, err, rev)
	}
	next := must(b.Update(ctx, "a", []byte("w1/2"), rev))
	if again, err := b.Update(ctx, "a", []byte("w1/2"), rev); err != nil || again != next {
		t.Errorf("update again: %d, %v; want %d", again, err, next)
	}
}

func aDeletedKeyIsFreeAndItsOldRevisionIsNot(t *testing.T, b store.Bucket) {
	ctx := t.Context()
	old := must(b.Create(ctx, "a", []byte("1")))
	must(b.Create(ctx, "b.c", []byte("1")))
	for range 2 { // the second finds nothing and says nothing
		if err := b.Delete(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := b.Get(ctx, "a"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("get of a deleted key: %v, want ErrNotFound", err)
	}
	if _, err := b.Update(ctx, "a", []byte("2"), old); !errors.Is(err, store.ErrConflict) {
		t.Errorf("update of a deleted key: %v, want ErrConflict", err)
	}
	if keys, err := b.Keys(ctx); err != nil || !slices.Equal(keys, []string{"b.c"}) {
		t.Errorf("keys: %v, %v; want b.c", keys, err)
	}
	if rev, err := b.Create(ctx, "a", []byte("3")); err != nil || rev <= old {
		t.Errorf("create of a deleted key: revision %d, %v; want above %d", rev, err, old)
	}
	if keys, err := b.Keys(ctx); err != nil || !slices.Equal(keys, []string{"a", "b.c"}) {
		t.Errorf("keys: %v, %v; want a and b.c", keys, err)
	}
}

// Creates over a delete marker are where a fallback to an unconditional put once gave two winners.
func ofFiftyWhoCreateOneWins(t *testing.T, b store.Bucket) {
	for round := range 40 {
		key := "lock." + strconv.Itoa(round%2)
		won := race(t, 50, func(ctx context.Context, i int) error {
			_, err := b.Create(ctx, key, fmt.Appendf(nil, "%d/%d", round, i))
			return err
		})
		if won != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, won)
		}
		if round%3 > 0 {
			_ = b.Delete(t.Context(), key)
		} else if err := b.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
}

func ofFiftyWhoUpdateOneRevisionOneWins(t *testing.T, b store.Bucket) {
	rev := must(b.Create(t.Context(), "fleet", []byte("start")))
	for round := range 40 {
		won := race(t, 50, func(ctx context.Context, i int) error {
			_, err := b.Update(ctx, "fleet", fmt.Appendf(nil, "%d/%d", round, i), rev)
			return err
		})
		if won != 1 {
			t.Fatalf("round %d: %d winners, want 1", round, won)
		}
		_, rev, _ = b.Get(t.Context(), "fleet")
	}
}

// race counts who succeeds; all others must be told that somebody else wrote.
func race(t *testing.T, n int, write func(ctx context.Context, i int) error) (won int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = write(ctx, i) })
	}
	all.Wait()
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, store.ErrConflict) {
			t.Errorf("a loser was told %v, want ErrConflict", err)
		}
	}
	return won
}

func everyIncrementCounts(t *testing.T, b store.Bucket) {
	ctx := t.Context()
	must(b.Create(ctx, "n", []byte("0 start")))
	var all sync.WaitGroup
	for writer := range 4 {
		all.Go(func() {
			for step := 0; step < 25; {
				val, rev, err := b.Get(ctx, "n")
				if err != nil {
					t.Error(err)
					return
				}
				var n int
				_, _ = fmt.Sscan(string(val), &n)
				_, err = b.Update(ctx, "n", fmt.Appendf(nil, "%d writer-%d/%d", n+1, writer, step), rev)
				switch {
				case err == nil:
					step++
				case !errors.Is(err, store.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	var n int
	val, _, _ := b.Get(ctx, "n")
	_, _ = fmt.Sscan(string(val), &n)
	if n != 100 {
		t.Errorf("%d increments of 100 counted", n)
	}
}

func TestAMarkerIsGoneAfterAnHourAndTheKeyStaysFree(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		b := open(t, js, "fleets", 1)
		ctx := context.WithoutCancel(t.Context())
		must(b.Create(ctx, "a", []byte("1")))
		if err := b.Delete(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour + time.Minute)
		st, err := js.Stream(ctx, "KV_fleets")
		if err != nil {
			t.Fatal(err)
		}
		if n := st.CachedInfo().State.Msgs; n != 0 {
			t.Errorf("%d messages left, want none", n)
		}
		must(b.Create(ctx, "a", []byte("2")))
	})
}

func TestObjectsAreNamedByWhatTheyHold(t *testing.T) {
	_, js := natstest.Connect(t, natstest.Start(t, embedded.Options{}))
	inStream, err := store.OpenObjects(t.Context(), js, "objects", 1)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]store.Objects{"Memory": store.MemoryObjects(), "JetStream": inStream} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			val := make([]byte, 3<<20)
			d := must(o.Put(ctx, val))
			if again := must(o.Put(ctx, val)); again != d || d != store.Digest(val) {
				t.Errorf("digests %s and %s, want %s twice", d, again, store.Digest(val))
			}
			got, err := o.Fetch(ctx, d)
			if err != nil || !slices.Equal(got, val) {
				t.Errorf("fetched %d bytes, %v; want %d", len(got), err, len(val))
			}
			if _, err := o.Fetch(ctx, store.Digest([]byte("other"))); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("fetch of nothing: %v, want ErrNotFound", err)
			}
		})
	}
	st, _ := js.Stream(t.Context(), "KV_objects")
	if n := st.CachedInfo().State.LastSeq; n != 1 {
		t.Errorf("the value was written %d times, want once", n)
	}
}

// Its age counts from the last writing, so an object that is named again late must be written again.
func TestAnObjectThatIsNamedAgainIsKeptAMonthMore(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		ctx := context.WithoutCancel(t.Context())
		o, err := store.OpenObjects(ctx, js, "objects", 1)
		if err != nil {
			t.Fatal(err)
		}
		written := func() time.Time {
			st, err := js.Stream(ctx, "KV_objects")
			if err != nil {
				t.Fatal(err)
			}
			if age := st.CachedInfo().Config.MaxAge; age < 30*24*time.Hour+3*time.Hour {
				t.Errorf("objects are kept for %v, less than the facts that name them", age)
			}
			return st.CachedInfo().State.LastTime
		}
		must(o.Put(ctx, []byte("offers")))
		first := written()
		time.Sleep(2 * time.Hour)
		must(o.Put(ctx, []byte("offers")))
		if got := written(); !got.Equal(first) {
			t.Errorf("written again after %v", got.Sub(first))
		}
		time.Sleep(time.Hour)
		must(o.Put(ctx, []byte("offers")))
		if got := written().Sub(first); got < 3*time.Hour {
			t.Errorf("last written after %v, want 3 h", got)
		}
	})
}

func TestAServerThatTakesOnlySmallMessagesIsRefused(t *testing.T) {
	err := store.Guard(t.Context(), natstest.Small(t, 1<<20))
	if err == nil || !strings.Contains(err.Error(), "max_payload") {
		t.Errorf("max_payload of 1 MB: %v, want a refusal", err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestAnExpiringBucketForgetsWhatHasLivedAndKeepsTheRest(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, s *embedded.Server) {
		_, js := natstest.Connect(t, s)
		plain := open(t, js, "expiring", 1)
		b := store.Expiring(plain, func(key string, val []byte) time.Duration {
			if strings.HasPrefix(string(val), "over") {
				return time.Minute
			}
			return 0
		})
		for _, key := range []string{"runs", "ends", "again"} {
			rev, err := b.Create(t.Context(), key, []byte("begun "+key))
			if err == nil && key != "runs" {
				_, err = b.Update(t.Context(), key, []byte("over "+key), rev)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		_, rev, err := b.Get(t.Context(), "again")
		if err == nil {
			_, err = b.Update(t.Context(), "again", []byte("begun once more"), rev)
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if keys, err := plain.Keys(t.Context()); err != nil || !slices.Equal(keys, []string{"again", "runs"}) {
			t.Errorf("keys %v (%v), want those that are not over", keys, err)
		}
		if _, _, err := b.Get(t.Context(), "ends"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("get: %v, want %v", err, store.ErrNotFound)
		}
		if _, err := b.Create(t.Context(), "ends", []byte("begun ends")); err != nil {
			t.Errorf("an expired key is not free: %v", err)
		}
	})
}

func TestAValueIsLoadedChangedAndSavedOverWhatWasRead(t *testing.T) {
	type count struct{ N int }
	b, ctx := store.Memory(), t.Context()
	c := count{N: 7}
	rev, err := store.Load(ctx, b, "k", &c)
	if err != nil || rev != 0 || c.N != 7 {
		t.Fatalf("nothing there: got %+v at %d, %v, want it as it was at 0", c, rev, err)
	}
	if rev, err = store.Save(ctx, b, "k", c, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Save(ctx, b, "k", count{N: 8}, 0); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a first write over what is there: got %v, want %v", err, store.ErrConflict)
	}
	if _, err := store.Save(ctx, b, "k", count{N: 9}, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Save(ctx, b, "k", count{N: 10}, rev); !errors.Is(err, store.ErrConflict) {
		t.Errorf("over what is not there any more: got %v, want %v", err, store.ErrConflict)
	}
	if now, err := store.Load(ctx, b, "k", &c); err != nil || c.N != 9 || now == rev {
		t.Errorf("got %+v at %d, %v, want 9 at a later revision than %d", c, now, err, rev)
	}
}
