package checkpoint_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"lowtide/shared/checkpoint"
)

var (
	key   = []byte("a key for nothing but tests")
	ctx   = context.Background()
	small = checkpoint.Options{ChunkSize: 1000}
)

func memory(t testing.TB) *blob.Bucket {
	t.Helper()
	b := memblob.OpenBucket(nil)
	t.Cleanup(func() { b.Close() })
	return b
}

// onDisk returns a store of files and its directory.
func onDisk(t testing.TB, o checkpoint.Options) (*checkpoint.Store, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	s, err := checkpoint.Open(ctx, "file://"+dir, key, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, dir
}

// tree writes files and returns their directory.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// content reads a directory back: files with modes and bytes, links with targets.
func content(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		var data []byte
		if info.Mode().IsRegular() {
			if data, err = os.ReadFile(p); err != nil {
				return err
			}
		} else if info.Mode()&fs.ModeSymlink != 0 {
			l, err := os.Readlink(p)
			if err != nil {
				return err
			}
			data = []byte("-> " + l)
		}
		out[rel] = info.Mode().String() + " " + string(data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func noise(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

func at(epoch, step int64) checkpoint.ID { return checkpoint.ID{Epoch: epoch, Step: step} }

func save(t testing.TB, s *checkpoint.Store, id checkpoint.ID, dir string) *checkpoint.Manifest {
	t.Helper()
	m, err := s.Save(ctx, "w", id, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// restored returns what the checkpoint holds, through a restore.
func restored(t testing.TB, s *checkpoint.Store, id checkpoint.ID) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if _, err := s.Restore(ctx, "w", id, dir, nil); err != nil {
		t.Fatal(err)
	}
	return content(t, dir)
}

func same(t testing.TB, got, want map[string]string) {
	t.Helper()
	if d := cmp.Diff(got, want); d != "" {
		t.Fatalf("restored (-) and saved (+) differ:\n%.2000s", d)
	}
}

func is(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got error %v, want %v", err, want)
	}
}

func TestARestoreIsEqualByteForByteWithModesLinksAndEmptyDirectories(t *testing.T) {
	dir := tree(t, map[string]string{
		"model.bin": noise(1, 12345), "exact": noise(2, 3000), "empty": "", "deep/down/optimiser": noise(3, 999), "ünï cödé": "x",
	})
	for name, mode := range map[string]fs.FileMode{"model.bin": 0o400, "exact": 0o755, "deep/down": 0o555} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "deep/down"), 0o755) })
	if err := os.Mkdir(filepath.Join(dir, "void"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("deep/down", filepath.Join(dir, "latest")); err != nil {
		t.Fatal(err)
	}
	s, _ := onDisk(t, small)
	m := save(t, s, at(1, 10), dir)
	if got, want := m.Bytes(), int64(12345+3000+999+1); got != want {
		t.Errorf("manifest counts %d bytes, want %d", got, want)
	}
	out := filepath.Join(t.TempDir(), "out")
	if _, err := s.Restore(ctx, "w", at(1, 10), out, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(out, "deep/down"), 0o755) })
	same(t, content(t, out), content(t, dir))
	if err := s.Verify(ctx, "w", at(1, 10), nil); err != nil {
		t.Error(err)
	}
}

func TestACheckpointOfEmptyFilesIsOne(t *testing.T) {
	s, _ := onDisk(t, small)
	dir := tree(t, map[string]string{"done": ""})
	save(t, s, at(1, 1), dir)
	same(t, restored(t, s, at(1, 1)), content(t, dir))
}

func TestASingleFileIsACheckpointToo(t *testing.T) {
	s := checkpoint.New(memory(t), key, small)
	dir := tree(t, map[string]string{"step-7.ckpt": noise(1, 2500), "another": "not this"})
	save(t, s, at(1, 7), filepath.Join(dir, "step-7.ckpt"))
	got := restored(t, s, at(1, 7))
	want := content(t, dir)
	delete(want, "another")
	same(t, got, want)
}

func TestAnUnchangedPieceIsNotUploadedAgain(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		b := memory(t)
		s := checkpoint.New(b, key, small)
		base := noise(1, 10_000)
		save(t, s, at(1, 1), tree(t, map[string]string{"m": base}))
		if fresh { // another machine, which knows of the chunks only by listing them
			s = checkpoint.New(b, key, small)
		}
		var last checkpoint.Progress
		changed := base[:5000] + "!" + base[5001:]
		if _, err := s.Save(ctx, "w", at(1, 2), tree(t, map[string]string{"m": changed}), func(p checkpoint.Progress) { last = p }); err != nil {
			t.Fatal(err)
		}
		if want := (checkpoint.Progress{Done: 10_000, Total: 10_000, Reused: 9_000}); last != want {
			t.Errorf("progress ended at %+v, want %+v", last, want)
		}
	}
}

func TestEqualPiecesOfOneSaveAreUploadedOnce(t *testing.T) {
	b := memory(t)
	s := checkpoint.New(b, key, small)
	dir := tree(t, map[string]string{"zeros": strings.Repeat("\x00", 50_000), "more": strings.Repeat("\x00", 50_000)})
	save(t, s, at(1, 1), dir)
	if n := len(keys(t, b, "ckpt/w/chunks/")); n != 1 {
		t.Errorf("%d chunks stored, want 1", n)
	}
	same(t, restored(t, s, at(1, 1)), content(t, dir))
}

func TestAReusedPieceOlderThanTwelveHoursIsUploadedAnew(t *testing.T) {
	// In the bubble the store's clock is the test's.
	synctest.Test(t, func(t *testing.T) {
		b := memory(t)
		s := checkpoint.New(b, key, small)
		dir := tree(t, map[string]string{"m": noise(1, 500)})
		first := save(t, s, at(1, 1), dir)
		time.Sleep(11 * time.Hour)
		second := save(t, s, at(1, 2), dir)
		time.Sleep(2 * time.Hour)
		third := save(t, s, at(1, 3), dir)
		names := func(m *checkpoint.Manifest) string { return m.Files[0].Chunks[0].Name }
		if names(first) != names(second) {
			t.Errorf("at 11 h uploaded again: %s, was %s", names(second), names(first))
		}
		if names(third) == names(second) {
			t.Error("at 13 h named again instead of uploaded")
		}
	})
}

func TestChunkNamesTellNothingWithoutTheKey(t *testing.T) {
	dir := tree(t, map[string]string{"m": "hello"})
	a := save(t, checkpoint.New(memory(t), key, small), at(1, 1), dir)
	b := save(t, checkpoint.New(memory(t), []byte("another key, of another fleet"), small), at(1, 1), dir)
	hash := func(m *checkpoint.Manifest) string { h, _, _ := strings.Cut(m.Files[0].Chunks[0].Name, "-"); return h }
	if hash(a) == hash(b) {
		t.Error("two fleets name the same bytes alike")
	}
}

func TestStepsAreOrderedAsNumbers(t *testing.T) {
	s := checkpoint.New(memory(t), key, small)
	dir := tree(t, map[string]string{"m": "x"})
	for _, step := range []int64{900, 1100, 1000, 99} {
		save(t, s, at(1, step), dir)
	}
	m, err := s.Latest(ctx, checkpoint.Query{Workload: "w", Epoch: 2})
	if err != nil {
		t.Fatal(err)
	}
	if m.ID != at(1, 1100) {
		t.Errorf("latest is %s, want 1-1100", m.ID)
	}
	ids, err := s.List(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	if want := []checkpoint.ID{at(1, 1100), at(1, 1000), at(1, 900), at(1, 99)}; !slices.Equal(ids, want) {
		t.Errorf("listed %v, want %v", ids, want)
	}
}

func TestWhereNothingWasSavedNothingIsFound(t *testing.T) {
	s, _ := onDisk(t, small)
	_, err := s.Latest(ctx, checkpoint.Query{Workload: "w", Epoch: 1})
	is(t, err, checkpoint.ErrNotFound)
	_, err = s.Restore(ctx, "w", at(1, 1), t.TempDir(), nil)
	is(t, err, checkpoint.ErrNotFound)
	_, _, err = s.RestoreNewest(ctx, checkpoint.Query{Workload: "w", Epoch: 1}, t.TempDir(), nil)
	is(t, err, checkpoint.ErrNotFound)
}

func TestAWrongKeyDoesNotPassForAWorkloadWithoutCheckpoints(t *testing.T) {
	b := memory(t)
	save(t, checkpoint.New(b, key, small), at(1, 1), tree(t, map[string]string{"m": "x"}))
	s := checkpoint.New(b, []byte("a key that is not ours"), small)
	_, err := s.Latest(ctx, checkpoint.Query{Workload: "w", Epoch: 2})
	is(t, err, checkpoint.ErrCorrupt)
	_, _, err = s.RestoreNewest(ctx, checkpoint.Query{Workload: "w", Epoch: 2}, t.TempDir(), nil)
	is(t, err, checkpoint.ErrCorrupt)
}

func TestADirectoryOfManifestsThatCannotBeReadIsAnErrorNotAnEmptyList(t *testing.T) {
	s, dir := onDisk(t, small)
	save(t, s, at(1, 1), tree(t, map[string]string{"m": "x"}))
	m := filepath.Join(dir, "ckpt/w/manifests")
	if err := os.RemoveAll(m); err != nil {
		t.Fatal(err)
	}
	// Root reads everything, so no mode keeps it out: a file in the directory's place does.
	if err := os.WriteFile(m, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := s.Latest(ctx, checkpoint.Query{Workload: "w", Epoch: 2})
	if err == nil || errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("got %v, want an error that is not ErrNotFound", err)
	}
}

func TestASaveRepeatedWithTheSameContentSucceeds(t *testing.T) {
	b := memory(t)
	dir := tree(t, map[string]string{"m": noise(1, 5000)})
	first := save(t, checkpoint.New(b, key, small), at(1, 1), dir)
	again := save(t, checkpoint.New(b, key, small), at(1, 1), dir)
	if d := cmp.Diff(again, first); d != "" {
		t.Errorf("the second save returned another manifest than the stored one:\n%s", d)
	}
}

func TestASaveOfOtherContentUnderATakenNameIsRefused(t *testing.T) {
	s, _ := onDisk(t, small)
	dir := tree(t, map[string]string{"m": "one"})
	save(t, s, at(1, 1), dir)
	_, err := s.Save(ctx, "w", at(1, 1), tree(t, map[string]string{"m": "two"}), nil)
	is(t, err, checkpoint.ErrTaken)
	same(t, restored(t, s, at(1, 1)), content(t, dir))
}

func TestOfRacingSavesOneWinsAndTheRestAreTold(t *testing.T) {
	_, dir := onDisk(t, small)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	dirs := make([]string, len(errs))
	for i := range errs {
		dirs[i] = tree(t, map[string]string{"m": fmt.Sprint("run ", i)})
		s, err := checkpoint.Open(ctx, "file://"+dir, key, small)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		wg.Go(func() { _, errs[i] = s.Save(ctx, "w", at(1, 1), dirs[i], nil) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		switch {
		case err == nil && won >= 0:
			t.Fatalf("saves %d and %d both succeeded", won, i)
		case err == nil:
			won = i
		default:
			is(t, err, checkpoint.ErrTaken)
		}
	}
	if won < 0 {
		t.Fatal("nobody won")
	}
	s, err := checkpoint.Open(ctx, "file://"+dir, key, small)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	same(t, restored(t, s, at(1, 1)), content(t, dirs[won]))
}

func TestACommitWhoseAnswerWasLostIsRecognised(t *testing.T) {
	f := &faulty{under: memory(t)}
	lost := 0
	f.after = func(_ int, op, key string) error {
		if op == "write" && strings.Contains(key, "/manifests/") && lost == 0 {
			lost++
			return errors.New("connection reset")
		}
		return nil
	}
	s := checkpoint.New(f.open(), key, small)
	dir := tree(t, map[string]string{"m": noise(1, 2000)})
	save(t, s, at(1, 1), dir)
	if lost != 1 {
		t.Fatal("no answer was lost")
	}
	same(t, restored(t, s, at(1, 1)), content(t, dir))
}

func TestAnOvertakenEpochCannotSave(t *testing.T) {
	s := checkpoint.New(memory(t), key, small)
	dir := tree(t, map[string]string{"m": "x"})
	save(t, s, at(4, 5000), dir)
	if err := s.Begin(ctx, "w", 5, at(4, 5000)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Save(ctx, "w", at(4, 5100), dir, nil)
	is(t, err, checkpoint.ErrStale)
	is(t, s.Begin(ctx, "w", 4, at(3, 1)), checkpoint.ErrStale)
	_, err = s.Prune(ctx, "w", checkpoint.Keep{Epoch: 4})
	is(t, err, checkpoint.ErrStale)
}

func TestAnEpochBeginsOnce(t *testing.T) {
	s := checkpoint.New(memory(t), key, small)
	for range 2 {
		if err := s.Begin(ctx, "w", 5, at(4, 5000)); err != nil {
			t.Fatal(err)
		}
	}
	is(t, s.Begin(ctx, "w", 5, at(4, 4000)), checkpoint.ErrTaken)
}

// The old machine was thought dead, comes back, and is past every check when the new epoch begins.
func TestAManifestCommittedAfterALaterEpochBeganIsNeverRestored(t *testing.T) {
	b := memory(t)
	f := &faulty{under: b}
	zombie, live := checkpoint.New(f.open(), key, small), checkpoint.New(b, key, small)
	dir := tree(t, map[string]string{"m": "x"})
	save(t, live, at(4, 4900), dir)
	save(t, live, at(4, 5000), dir)
	f.before = func(_ context.Context, _ int, op, key string) error {
		if op == "write" && strings.Contains(key, "/manifests/") {
			return live.Begin(ctx, "w", 5, at(4, 5000))
		}
		return nil
	}
	_, err := zombie.Save(ctx, "w", at(4, 5100), dir, nil)
	is(t, err, checkpoint.ErrStale)
	if ids, _ := live.List(ctx, "w"); !slices.Contains(ids, at(4, 5100)) {
		t.Fatal("the zombie's manifest was not written: this test shows nothing")
	}
	latest := func(q checkpoint.Query, want checkpoint.ID) {
		t.Helper()
		q.Workload = "w"
		m, err := live.Latest(ctx, q)
		if err != nil || m.ID != want {
			t.Errorf("latest for %+v: %v, %v; want %s", q, m, err, want)
		}
	}
	latest(checkpoint.Query{Epoch: 5}, at(4, 5000))
	latest(checkpoint.Query{Epoch: 6}, at(4, 5000))
	save(t, live, at(5, 5050), dir)
	latest(checkpoint.Query{Epoch: 5}, at(4, 5000))
	latest(checkpoint.Query{Epoch: 5, Own: true}, at(5, 5050))
	latest(checkpoint.Query{Epoch: 6}, at(5, 5050))
	latest(checkpoint.Query{Epoch: 6, Below: at(5, 5050)}, at(4, 5000))
	m, _, err := live.RestoreNewest(ctx, checkpoint.Query{Workload: "w", Epoch: 6, Below: at(5, 5050)}, t.TempDir(), nil)
	if err != nil || m.ID != at(4, 5000) {
		t.Errorf("restored %v, %v; want 4-5000", m, err)
	}
}

// keys lists a bucket.
func keys(t testing.TB, b *blob.Bucket, prefix string) []string {
	t.Helper()
	var out []string
	it := b.List(&blob.ListOptions{Prefix: prefix})
	for {
		o, err := it.Next(ctx)
		if err != nil {
			return out
		}
		out = append(out, o.Key)
	}
}

func TestDamageIsNamedAndTheCheckpointBeforeItIsTaken(t *testing.T) {
	oldDir, newDir := tree(t, map[string]string{"m": noise(1, 5000)}), tree(t, map[string]string{"m": noise(2, 5000)})
	damage := map[string]func([]byte) []byte{
		"a bit is flipped":   func(d []byte) []byte { d = bytes.Clone(d); d[len(d)/2] ^= 1; return d },
		"a byte is missing":  func(d []byte) []byte { return d[:len(d)-1] },
		"it is empty":        func([]byte) []byte { return nil },
		"something is added": func(d []byte) []byte { return append(bytes.Clone(d), 'x') },
		"it is gone":         nil,
	}
	for what, change := range damage {
		for _, part := range []string{"chunk", "manifest"} {
			if part == "manifest" && change == nil {
				continue // then there is no such checkpoint
			}
			t.Run(part+": "+what, func(t *testing.T) {
				b := memory(t)
				s := checkpoint.New(b, key, small)
				save(t, s, at(1, 100), oldDir)
				m := save(t, s, at(1, 200), newDir)
				victim := "ckpt/w/chunks/" + m.Files[0].Chunks[2].Name
				if part == "manifest" {
					victim = keys(t, b, "ckpt/w/manifests/")[1]
				}
				data, err := b.ReadAll(ctx, victim)
				if err != nil {
					t.Fatal(err)
				}
				if change == nil {
					err = b.Delete(ctx, victim)
				} else {
					err = b.WriteAll(ctx, victim, change(data), nil)
				}
				if err != nil {
					t.Fatal(err)
				}
				out := filepath.Join(t.TempDir(), "out")
				_, err = s.Restore(ctx, "w", at(1, 200), out, nil)
				is(t, err, checkpoint.ErrCorrupt)
				if !strings.Contains(err.Error(), victim) {
					t.Errorf("error %q does not name %s", err, victim)
				}
				is(t, s.Verify(ctx, "w", at(1, 200), nil), checkpoint.ErrCorrupt)
				if left, _ := os.ReadDir(filepath.Dir(out)); len(left) != 0 {
					t.Errorf("left behind: %v", left)
				}
				got, skipped, err := s.RestoreNewest(ctx, checkpoint.Query{Workload: "w", Epoch: 2}, out, nil)
				if err != nil || got.ID != at(1, 100) || len(skipped) != 1 {
					t.Fatalf("restored %v, skipped %v, error %v; want 1-100 and one skipped", got, skipped, err)
				}
				same(t, content(t, out), content(t, oldDir))
			})
		}
	}
}

func TestADamagedChunkIsNotUsedAgain(t *testing.T) {
	b := memory(t)
	s := checkpoint.New(b, key, small)
	dir := tree(t, map[string]string{"m": noise(1, 900)})
	m := save(t, s, at(1, 1), dir)
	if err := b.WriteAll(ctx, "ckpt/w/chunks/"+m.Files[0].Chunks[0].Name, []byte(noise(2, 900)), nil); err != nil {
		t.Fatal(err)
	}
	is(t, s.Verify(ctx, "w", at(1, 1), nil), checkpoint.ErrCorrupt)
	save(t, s, at(1, 2), dir)
	same(t, restored(t, s, at(1, 2)), content(t, dir))
}

func TestAFullDirectoryIsNotRestoredInto(t *testing.T) {
	s := checkpoint.New(memory(t), key, small)
	save(t, s, at(1, 1), tree(t, map[string]string{"m": "x"}))
	dir := tree(t, map[string]string{"mine": "y"})
	_, err := s.Restore(ctx, "w", at(1, 1), dir, nil)
	is(t, err, checkpoint.ErrTaken)
	if got := len(content(t, dir)); got != 1 {
		t.Errorf("%d files, want the one that was there", got)
	}
}

func TestADiskThatIsTooSmallIsToldBeforeAnythingIsWritten(t *testing.T) {
	free := int64(1 << 40)
	o := small
	o.Free = func(string) (int64, bool) { return free, true }
	s, dir := onDisk(t, o)
	from := tree(t, map[string]string{"m": noise(1, 8000)})
	free = 3000
	_, err := s.Save(ctx, "w", at(1, 1), from, nil)
	is(t, err, checkpoint.ErrNoSpace)
	if !strings.Contains(err.Error(), "3000 bytes free, 8000 needed") {
		t.Errorf("error %q lacks the numbers", err)
	}
	if chunks, _ := os.ReadDir(filepath.Join(dir, "ckpt/w/chunks")); len(chunks) > 0 {
		t.Errorf("%d chunks written", len(chunks))
	}
	free = 1 << 40
	save(t, s, at(1, 1), from)
	free = 3000
	out := filepath.Join(t.TempDir(), "out")
	_, err = s.Restore(ctx, "w", at(1, 1), out, nil)
	is(t, err, checkpoint.ErrNoSpace)
	if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestAnUploadThatStallsIsBegunAgainAndOneThatStallsForEverFails(t *testing.T) {
	o := small
	o.Stall = 20 * time.Millisecond
	for _, forever := range []bool{false, true} {
		f := &faulty{under: memory(t)}
		var once sync.Once
		f.before = func(ctx context.Context, _ int, op, key string) error {
			hang := forever
			if !forever {
				once.Do(func() { hang = true })
			}
			if hang && op == "write" && strings.Contains(key, "/chunks/") {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		f.count = 0
		s := checkpoint.New(f.open(), key, o)
		// The first operation of a save is a listing; only chunks are to use up the one hang.
		inner := f.before
		f.before = func(ctx context.Context, n int, op, key string) error {
			if op != "write" || !strings.Contains(key, "/chunks/") {
				return nil
			}
			return inner(ctx, n, op, key)
		}
		var last checkpoint.Progress
		dir := tree(t, map[string]string{"m": noise(1, 3000)})
		_, err := s.Save(ctx, "w", at(1, 1), dir, func(p checkpoint.Progress) { last = p })
		if !forever {
			if err != nil {
				t.Fatal(err)
			}
			if last.Done != 3000 {
				t.Errorf("progress ended at %+v, want 3000 done", last)
			}
			same(t, restored(t, s, at(1, 1)), content(t, dir))
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "no progress for 20ms") || !strings.Contains(err.Error(), "upload chunk") {
			t.Errorf("got %v, want a stall that names its chunk", err)
		}
	}
}

func TestNamesThatLeadOutAreRefused(t *testing.T) {
	s := checkpoint.New(memory(t), key, small)
	dir := tree(t, map[string]string{"m": "x"})
	for _, name := range []string{"", ".", "..", "a/b", "../w", "w\x00"} {
		if _, err := s.Save(ctx, name, at(1, 1), dir, nil); err == nil {
			t.Errorf("workload %q was accepted", name)
		}
	}
	for _, target := range []string{"/etc/passwd", "../../secret"} {
		dir := tree(t, map[string]string{"m": "x"})
		if err := os.Symlink(target, filepath.Join(dir, "l")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Save(ctx, "w", at(1, 1), dir, nil); err == nil {
			t.Errorf("a link to %s was saved", target)
		}
	}
	if _, err := s.Save(ctx, "w", at(0, 1), dir, nil); err == nil {
		t.Error("epoch 0 was accepted")
	}
	if _, err := s.Save(ctx, "w", at(1, 1), t.TempDir(), nil); err == nil {
		t.Error("an empty directory was saved")
	}
}

// Whatever operation is the machine's last, and whether or not its effect was still felt, the checkpoint before it is
// whole, and the new one is there whole or not at all.
func TestASaveKilledAtAnyOperationLeavesTheCheckpointBeforeItWhole(t *testing.T) {
	oldDir, newDir := tree(t, map[string]string{"m": noise(1, 4000), "o": noise(2, 10)}), tree(t, map[string]string{"m": noise(3, 4000), "o": noise(2, 10)})
	want, wantNew := content(t, oldDir), content(t, newDir)
	o := small
	o.Attempts = 1
	o.Workers = 2
	for _, effect := range []bool{false, true} {
		partial, complete := 0, 0
		for k := 1; ; k++ {
			b := memory(t)
			healthy := checkpoint.New(b, key, o)
			save(t, healthy, at(1, 900), oldDir)
			f := &faulty{under: b}
			f.before = func(_ context.Context, n int, _, _ string) error {
				if n > k || n == k && !effect {
					return errDied
				}
				return nil
			}
			f.after = func(n int, _, _ string) error {
				if n >= k {
					return errDied
				}
				return nil
			}
			_, err := checkpoint.New(f.open(), key, o).Save(ctx, "w", at(1, 1000), newDir, nil)
			if err == nil {
				if k < 10 {
					t.Fatalf("a save has only %d operations: something is not exercised", k-1)
				}
				break
			}
			same(t, restored(t, healthy, at(1, 900)), want)
			out := filepath.Join(t.TempDir(), "out")
			m, skipped, err := healthy.RestoreNewest(ctx, checkpoint.Query{Workload: "w", Epoch: 2}, out, nil)
			if err != nil || len(skipped) > 0 {
				t.Fatalf("killed at operation %d: restore: %v, skipped %v", k, err, skipped)
			}
			switch m.ID {
			case at(1, 900):
				partial++
				same(t, content(t, out), want)
			case at(1, 1000):
				complete++
				same(t, content(t, out), wantNew)
			default:
				t.Fatalf("restored %s", m.ID)
			}
			// The machine comes back and saves the same step: the rubbish of the first try is in nobody's way.
			save(t, checkpoint.New(b, key, o), at(1, 1000), newDir)
			same(t, restored(t, healthy, at(1, 1000)), wantNew)
		}
		if partial == 0 || effect && complete == 0 {
			t.Errorf("effect %v: %d partial, %d complete saves seen", effect, partial, complete)
		}
	}
}

func TestACancelledSaveLeavesNoCheckpoint(t *testing.T) {
	s, _ := onDisk(t, small)
	cancelled, cancel := context.WithCancel(ctx)
	_, err := s.Save(cancelled, "w", at(1, 1), tree(t, map[string]string{"m": noise(1, 50_000)}), func(p checkpoint.Progress) {
		if p.Done > 20_000 {
			cancel()
		}
	})
	is(t, err, context.Canceled)
	if ids, err := s.List(ctx, "w"); err != nil || len(ids) > 0 {
		t.Errorf("listed %v, %v; want none", ids, err)
	}
}

func TestAFileThatChangesWhileItIsSavedIsNotSaved(t *testing.T) {
	f := &faulty{under: memory(t)}
	dir := tree(t, map[string]string{"m": noise(1, 5000)})
	var once sync.Once
	f.before = func(_ context.Context, _ int, op, key string) error {
		if op == "write" && strings.Contains(key, "/chunks/") {
			once.Do(func() {
				if err := os.Truncate(filepath.Join(dir, "m"), 4000); err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}
	o := small
	o.Workers = 1
	s := checkpoint.New(f.open(), key, o)
	if _, err := s.Save(ctx, "w", at(1, 1), dir, nil); err == nil {
		t.Error("it was saved")
	}
	if ids, _ := s.List(ctx, "w"); len(ids) > 0 {
		t.Errorf("listed %v", ids)
	}
}

func TestASaveThatCannotFinishInTheNoticeIsNotBegun(t *testing.T) {
	b := checkpoint.Budget{Bytes: 420e9, PerSecond: 1.6e9, Serialise: 20 * time.Second, Margin: 30 * time.Second}
	for window, want := range map[time.Duration]bool{0: false, 30 * time.Second: false, 120 * time.Second: false, 300 * time.Second: false, 313 * time.Second: true} {
		b.Window = window
		v := checkpoint.CanFinish(b)
		if v.OK != want {
			t.Errorf("window %s: %s, want OK %v", window, v, want)
		}
		if got := v.String(); !strings.Contains(got, "4m42.5s") || !strings.Contains(got, window.String()) {
			t.Errorf("%q lacks its numbers", got)
		}
	}
	b.Window = time.Hour
	b.PerSecond = 0
	if v := checkpoint.CanFinish(b); v.OK || v.Known {
		t.Errorf("without a rate: %+v, want unknown and not OK", v)
	}
	b.PerSecond = 1e-300
	if v := checkpoint.CanFinish(b); v.OK || !v.Known {
		t.Errorf("at almost no rate: %+v, want not OK", v)
	}
}

func TestTransientErrorsAreTriedAgainAndRefusalsAreNot(t *testing.T) {
	f := &faulty{under: memory(t)}
	tries := map[string]int{}
	var mu sync.Mutex
	f.before = func(_ context.Context, _ int, op, key string) error {
		if op != "write" || !strings.Contains(key, "/chunks/") {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		tries["chunk"]++
		if tries["chunk"] == 1 {
			return errors.New("connection reset")
		}
		return nil
	}
	s := checkpoint.New(f.open(), key, small)
	dir := tree(t, map[string]string{"m": "x"})
	save(t, s, at(1, 1), dir)
	if want := map[string]int{"chunk": 2}; !maps.Equal(tries, want) {
		t.Errorf("tries %v, want %v", tries, want)
	}
	f.before = func(context.Context, int, string, string) error {
		mu.Lock()
		tries["refused"]++
		mu.Unlock()
		return errRefused
	}
	if _, err := s.Manifest(ctx, "w", at(1, 1)); err == nil || tries["refused"] != 1 {
		t.Errorf("a refusal was tried %d times (%v), want 1", tries["refused"], err)
	}
}

func TestWhatCanNeverBeSavedIsToldApartFromAStoreThatDoesNotAnswer(t *testing.T) {
	s, _ := onDisk(t, checkpoint.Options{})
	for name, spoil := range map[string]func(dir string) error{
		"a link out of it": func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "pw")) },
		"a socket": func(dir string) error {
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		},
		"nothing": func(dir string) error { return os.Remove(filepath.Join(dir, "w")) },
	} {
		dir := tree(t, map[string]string{"w": "x"})
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Save(ctx, "w", at(1, 1), dir, nil); !errors.Is(err, checkpoint.ErrUnfit) {
			t.Errorf("%s: %v, want ErrUnfit", name, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Save(ended, "w", at(1, 1), tree(t, map[string]string{"w": "x"}), nil); err == nil || errors.Is(err, checkpoint.ErrUnfit) {
		t.Errorf("a save that was called off: %v, want another error", err)
	}
}

func TestASaveUploadsAgainWhatItsStoreHasLost(t *testing.T) {
	s, out := onDisk(t, checkpoint.Options{})
	files := map[string]string{"static": noise(1, 100_000), "other": noise(2, 50_000), "step": "1"}
	save(t, s, at(1, 1), tree(t, files))
	for name, lose := range map[int64]func() error{
		2: func() error { return os.RemoveAll(out) },
		3: func() error { return each(out, os.Remove) },
		4: func() error { return each(out, func(name string) error { return os.Truncate(name, 7) }) },
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		files["step"] = fmt.Sprint(name)
		dir := tree(t, files)
		save(t, s, at(1, name+1), dir)
		if diff := cmp.Diff(content(t, dir), restored(t, s, at(1, name+1))); diff != "" {
			t.Errorf("loss %d: restored otherwise (-want +got):\n%s", name, diff)
		}
	}
}

// each does something to every chunk below a directory.
func each(dir string, do func(name string) error) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(filepath.Dir(p)) != "chunks" {
			return err
		}
		return do(p)
	})
}
