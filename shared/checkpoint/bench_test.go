package checkpoint_test

import (
	"os"
	"path/filepath"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"

	"lowtide/shared/checkpoint"
)

const benchBytes = 256 << 20

func benchFile(b *testing.B) string {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.bin"), []byte(noise(1, benchBytes)), 0o600); err != nil {
		b.Fatal(err)
	}
	return dir
}

// BenchmarkPlainCopy is the measure: the same bytes to the same kind of store, seen to the disk, unchecked and unnamed.
func BenchmarkPlainCopy(b *testing.B) {
	dir := benchFile(b)
	b.SetBytes(benchBytes)
	for b.Loop() {
		b.StopTimer()
		out := b.TempDir()
		bucket, err := blob.OpenBucket(ctx, "file://"+out+"?no_tmp_dir=true&metadata=skip")
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		in, err := os.Open(filepath.Join(dir, "model.bin"))
		if err != nil {
			b.Fatal(err)
		}
		var file *os.File
		w, err := bucket.NewWriter(ctx, "copy", &blob.WriterOptions{
			ContentType: "application/octet-stream",
			BeforeWrite: func(as func(any) bool) error { as(&file); return nil },
		})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := w.ReadFrom(in); err != nil {
			b.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
		in.Close()
		b.StopTimer()
		bucket.Close()
		os.RemoveAll(out)
		b.StartTimer()
	}
}

// BenchmarkSave saves to a new store each time: nothing is reused.
func BenchmarkSave(b *testing.B) {
	dir := benchFile(b)
	b.SetBytes(benchBytes)
	for b.Loop() {
		b.StopTimer()
		s, out := onDisk(b, checkpoint.Options{})
		b.StartTimer()
		save(b, s, at(1, 1), dir)
		b.StopTimer()
		os.RemoveAll(out)
		b.StartTimer()
	}
}

// BenchmarkSaveUnchanged saves what the store holds already.
func BenchmarkSaveUnchanged(b *testing.B) {
	dir := benchFile(b)
	s, _ := onDisk(b, checkpoint.Options{})
	save(b, s, at(1, 1), dir)
	b.SetBytes(benchBytes)
	step := int64(1)
	for b.Loop() {
		step++
		save(b, s, at(1, step), dir)
	}
}

// BenchmarkRestore restores and checks every byte.
func BenchmarkRestore(b *testing.B) {
	s, _ := onDisk(b, checkpoint.Options{})
	save(b, s, at(1, 1), benchFile(b))
	b.SetBytes(benchBytes)
	for b.Loop() {
		out := filepath.Join(b.TempDir(), "out")
		if _, err := s.Restore(ctx, "w", at(1, 1), out, nil); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		os.RemoveAll(out)
		b.StartTimer()
	}
}

// BenchmarkSaveSmall is what a simulation pays for each save of a small model.
func BenchmarkSaveSmall(b *testing.B) {
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	s := checkpoint.New(bucket, key, checkpoint.Options{})
	dir := tree(b, map[string]string{"model": noise(1, 4000)})
	step := int64(0)
	for b.Loop() {
		step++
		save(b, s, at(1, step), dir)
	}
}
