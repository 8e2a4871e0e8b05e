package checkpoint_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lowtide/shared/checkpoint"
)

func prune(t *testing.T, s *checkpoint.Store, k checkpoint.Keep) checkpoint.Pruned {
	t.Helper()
	if k.Epoch == 0 {
		k.Epoch = 1
	}
	p, err := s.Prune(ctx, "w", k)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPruneWithdrawsManifestsFirstAndTheirChunksADayLater(t *testing.T) {
	// In the bubble the store's clock is the test's.
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		s := checkpoint.New(b, key, small)
		dirs := map[int64]string{}
		for step := int64(1); step <= 5; step++ {
			dirs[step] = tree(t, map[string]string{"m": noise(uint64(step), 3000)})
			save(t, s, at(1, step), dirs[step])
		}
		p := prune(t, s, checkpoint.Keep{Last: 3, Named: []checkpoint.ID{at(1, 1)}})
		if want := []checkpoint.ID{at(1, 2)}; !slices.Equal(p.Manifests, want) || p.Chunks != 0 {
			t.Fatalf("pruned %+v, want %v and no chunk", p, want)
		}
		if ids, _ := s.List(ctx, "w"); slices.Contains(ids, at(1, 2)) {
			t.Error("a withdrawn checkpoint is still listed")
		}
		same(t, restored(t, s, at(1, 2)), content(t, dirs[2])) // a restore that was ordered before the prune
		time.Sleep(23 * time.Hour)
		if p := prune(t, s, checkpoint.Keep{Last: 3, Named: []checkpoint.ID{at(1, 1)}}); p.Chunks != 0 || len(p.Manifests) != 0 {
			t.Fatalf("after 23 h pruned %+v, want nothing", p)
		}
		time.Sleep(2 * time.Hour)
		if p := prune(t, s, checkpoint.Keep{Last: 3, Named: []checkpoint.ID{at(1, 1)}}); p.Chunks != 3 || p.Bytes != 3000 {
			t.Fatalf("after 25 h pruned %+v, want 3 chunks of 3000 bytes", p)
		}
		if left := keys(t, b, "ckpt/w/pruned/"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		_, err := s.Restore(ctx, "w", at(1, 2), filepath.Join(t.TempDir(), "out"), nil)
		is(t, err, checkpoint.ErrNotFound)
		for _, step := range []int64{1, 3, 4, 5} {
			same(t, restored(t, s, at(1, step)), content(t, dirs[step]))
		}
	})
}

func TestPartialCheckpointsDoNotCountAndTheLastTwoAlwaysStay(t *testing.T) {
	// In the bubble the store's clock is the test's.
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		s := checkpoint.New(b, key, small)
		for _, step := range []int64{900, 1000, 1100} {
			save(t, s, at(1, step), tree(t, map[string]string{"m": noise(uint64(step), 1500)}))
		}
		// A save that died before its manifest, and a writer that died before its rename.
		if err := b.WriteAll(ctx, "ckpt/w/chunks/"+strings.Repeat("ab", 32)+"-0011223344556677", []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		if err := b.WriteAll(ctx, "ckpt/w/manifests/0000000000000000001-0000000000000001200.json.18f.tmp", []byte("{"), nil); err != nil {
			t.Fatal(err)
		}
		if p := prune(t, s, checkpoint.Keep{Last: 3}); len(p.Manifests) != 0 {
			t.Errorf("withdrew %v, want none of three", p.Manifests)
		}
		if p := prune(t, s, checkpoint.Keep{}); !slices.Equal(p.Manifests, []checkpoint.ID{at(1, 900)}) {
			t.Errorf("withdrew %v, want only 1-900", p.Manifests)
		}
		time.Sleep(25 * time.Hour)
		if p := prune(t, s, checkpoint.Keep{}); p.Chunks != 3 { // two of step 900, one of the save that died
			t.Errorf("deleted %d chunks, want 3", p.Chunks)
		}
	})
}

func TestLateManifestsOfAnOvertakenEpochDoNotPushOutGoodOnes(t *testing.T) {
	b := memory(t)
	f := &faulty{under: b}
	s, zombie := checkpoint.New(b, key, small), checkpoint.New(f.open(), key, small)
	dir := tree(t, map[string]string{"m": "x"})
	for _, step := range []int64{1, 2, 3} {
		save(t, s, at(4, step), dir)
	}
	f.before = func(_ context.Context, _ int, op, key string) error {
		if op == "write" && strings.Contains(key, "/manifests/") {
			return s.Begin(ctx, "w", 5, at(4, 2))
		}
		return nil
	}
	_, err := zombie.Save(ctx, "w", at(4, 9), dir, nil)
	is(t, err, checkpoint.ErrStale)
	p := prune(t, s, checkpoint.Keep{Epoch: 5})
	if len(p.Manifests) != 0 { // 4-9 and 4-3 are the newest by number, 4-2 and 4-1 those that can be restored
		t.Errorf("withdrew %v", p.Manifests)
	}
	for step := int64(10); step < 13; step++ {
		save(t, s, at(5, step), dir)
	}
	p = prune(t, s, checkpoint.Keep{Epoch: 5})
	if ids, _ := s.List(ctx, "w"); !slices.Equal(ids, []checkpoint.ID{at(5, 12), at(5, 11), at(4, 2)}) {
		t.Errorf("left %v, want the last two and what epoch 5 began from; pruned %v", ids, p.Manifests)
	}
}

func TestWhileAManifestCannotBeReadNoChunkIsDeleted(t *testing.T) {
	// In the bubble the store's clock is the test's.
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		s := checkpoint.New(b, key, small)
		dir := tree(t, map[string]string{"m": noise(1, 3000)})
		save(t, s, at(1, 1), dir)
		for step := int64(2); step < 5; step++ {
			save(t, s, at(1, step), tree(t, map[string]string{"m": noise(uint64(step), 3000)}))
		}
		victim := keys(t, b, "ckpt/w/manifests/")[0]
		good, err := b.ReadAll(ctx, victim)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.WriteAll(ctx, victim, good[:100], nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(25 * time.Hour)
		before := len(keys(t, b, "ckpt/w/chunks/"))
		p := prune(t, s, checkpoint.Keep{})
		if !slices.Equal(p.Damaged, []string{victim}) || p.Chunks != 0 || len(keys(t, b, "ckpt/w/chunks/")) != before {
			t.Fatalf("pruned %+v; want %s named and no chunk deleted", p, victim)
		}
		if err := b.WriteAll(ctx, victim, good, nil); err != nil { // somebody repairs it
			t.Fatal(err)
		}
		same(t, restored(t, s, at(1, 1)), content(t, dir))
	})
}

// A save adopts a chunk that nothing names any more while a prune, which found it old, is about to delete it.
func TestAPruneBesideASaveTakesNothingFromIt(t *testing.T) {
	// In the bubble the store's clock is the test's.
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		s := checkpoint.New(b, key, small)
		precious := tree(t, map[string]string{"m": noise(1, 3000)})
		save(t, s, at(1, 1), precious)
		for step := int64(2); step < 4; step++ {
			save(t, s, at(1, step), tree(t, map[string]string{"m": noise(uint64(step), 3000)}))
		}
		prune(t, s, checkpoint.Keep{})
		time.Sleep(25 * time.Hour)
		f := &faulty{under: b}
		saved := false
		f.before = func(_ context.Context, _ int, op, name string) error {
			if op == "delete" && strings.Contains(name, "/chunks/") && !saved {
				saved = true
				save(t, checkpoint.New(b, key, small), at(1, 4), precious)
			}
			return nil
		}
		p := prune(t, checkpoint.New(f.open(), key, small), checkpoint.Keep{})
		if !saved || p.Chunks != 3 {
			t.Fatalf("saved %v, pruned %+v: the race did not happen", saved, p)
		}
		same(t, restored(t, s, at(1, 4)), content(t, precious))
	})
}

func TestAPruneKilledAtAnyOperationLosesNothingAndCanBeRepeated(t *testing.T) {
	// In the bubble the store's clock is the test's.
	synctest.Test(t, func(t *testing.T) {
		dirs := map[int64]string{}
		for step := int64(1); step <= 4; step++ {
			dirs[step] = tree(t, map[string]string{"m": noise(uint64(step), 2000), "common": noise(99, 1000)})
		}
		var runs int
		for k := 1; ; k++ {
			runs = k
			b := memory(t)
			o := small
			o.Attempts = 1
			s := checkpoint.New(b, key, o)
			save(t, s, at(1, 1), dirs[1])
			save(t, s, at(1, 2), dirs[2])
			save(t, s, at(1, 3), dirs[3])
			prune(t, s, checkpoint.Keep{}) // withdraws 1
			save(t, s, at(1, 4), dirs[4])
			time.Sleep(25 * time.Hour) // now 1 can go for good, and 2 be withdrawn
			f := &faulty{under: b}
			f.before = func(_ context.Context, n int, _, _ string) error {
				if n > k {
					return errDied
				}
				return nil
			}
			_, err := checkpoint.New(f.open(), key, o).Prune(ctx, "w", checkpoint.Keep{Epoch: 1})
			for _, step := range []int64{2, 3, 4} {
				same(t, restored(t, s, at(1, step)), content(t, dirs[step]))
			}
			if err == nil {
				break
			}
			prune(t, s, checkpoint.Keep{})
			for _, step := range []int64{2, 3, 4} {
				same(t, restored(t, s, at(1, step)), content(t, dirs[step]))
			}
			if left := keys(t, b, "ckpt/w/chunks/"); len(left) != 2*3+1 {
				t.Fatalf("killed at operation %d: %d chunks left after the next prune, want 7", k, len(left))
			}
		}
		if runs < 10 {
			t.Fatalf("a prune has only %d operations: something is not exercised", runs)
		}
	})
}

// The store tells its own time: a machine whose clock is a week ahead deletes nothing early.
func TestAgesAreTheStoresOwn(t *testing.T) {
	s, dir := onDisk(t, small)
	for step := int64(1); step <= 3; step++ {
		save(t, s, at(1, step), tree(t, map[string]string{"m": noise(uint64(step), 900)}))
	}
	prune(t, s, checkpoint.Keep{})
	if p := prune(t, s, checkpoint.Keep{}); p.Chunks != 0 {
		t.Fatalf("deleted %d young chunks", p.Chunks)
	}
	old := time.Now().Add(-25 * time.Hour)
	err := filepath.WalkDir(filepath.Join(dir, "ckpt"), func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chtimes(p, old, old)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if p := prune(t, s, checkpoint.Keep{}); p.Chunks != 1 {
		t.Errorf("deleted %d old chunks, want 1", p.Chunks)
	}
}
