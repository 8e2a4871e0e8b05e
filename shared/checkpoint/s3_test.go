package checkpoint_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"gocloud.dev/blob"

	"lowtide/shared/checkpoint"
)

// vendor stands in for a store that speaks S3 but not all of it: it answers 501 to the SDK's trailing checksums, does
// not know If-None-Match, and refuses to overwrite where its own header says so and is signed.
type vendor struct {
	header, value, code string
	status              int

	under http.Handler
	mu    sync.Mutex // a condition and the write that follows are one
}

func (v *vendor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		v.under.ServeHTTP(w, r)
		return
	}
	if r.Header.Get("X-Amz-Trailer") != "" || strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		refuse(w, http.StatusNotImplemented, "NotImplemented")
		return
	}
	r.Header.Del("If-None-Match")
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.header != "" && r.Header.Get(v.header) == v.value {
		if !strings.Contains(r.Header.Get("Authorization"), strings.ToLower(v.header)) {
			refuse(w, http.StatusForbidden, "AccessDenied")
			return
		}
		head := httptest.NewRecorder()
		v.under.ServeHTTP(head, httptest.NewRequest(http.MethodHead, r.URL.Path, nil))
		if head.Code == http.StatusOK {
			refuse(w, v.status, v.code)
			return
		}
	}
	v.under.ServeHTTP(w, r)
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>refused</Message></Error>", code)
}

// s3Server starts a store in memory with one bucket, changed by with, and returns the store's address.
func s3Server(t testing.TB, dialect string, with func(http.Handler) http.Handler) string {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", "of-a-test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "of-a-test")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	backend := s3mem.New()
	if err := backend.CreateBucket("bucket"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(with(gofakes3.New(backend, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()))
	t.Cleanup(server.Close)
	return "s3://bucket?use_path_style=true&dialect=" + dialect + "&endpoint=" + url.QueryEscape(server.URL)
}

func asItIs(h http.Handler) http.Handler { return h }

func vendors() map[string]func(http.Handler) http.Handler {
	of := func(header, value string, status int, code string) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return &vendor{header: header, value: value, status: status, code: code, under: h}
		}
	}
	return map[string]func(http.Handler) http.Handler{
		"s3":  asItIs,
		"oss": of("X-Oss-Forbid-Overwrite", "true", http.StatusConflict, "FileAlreadyExists"),
		"cos": of("X-Cos-Forbid-Overwrite", "true", http.StatusConflict, "FileAlreadyExists"),
		"tos": of("X-Tos-Forbid-Overwrite", "true", http.StatusConflict, "ObjectAlreadyExists"),
		"obs": of("X-Obs-Forbid-Overwrite", "true", http.StatusConflict, "ObjectAlreadyExists"),
		"gcs": of("X-Goog-If-Generation-Match", "0", http.StatusPreconditionFailed, "PreconditionFailed"),
	}
}

func openS3(t testing.TB, address string, o checkpoint.Options) *checkpoint.Store {
	t.Helper()
	s, err := checkpoint.Open(ctx, address, key, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestACheckpointOnEachDialectOfS3IsRestoredWholeAndCommittedOnce(t *testing.T) {
	for name, with := range vendors() {
		t.Run(name, func(t *testing.T) {
			address := s3Server(t, name, with) + "&prefix=team-a/"
			s := openS3(t, address, small)
			dir := tree(t, map[string]string{"model": noise(1, 4321), "a/b": "x", "empty": ""})
			save(t, s, at(1, 100), dir)
			save(t, s, at(1, 100), dir) // its answer was lost: the same again is success

			other := openS3(t, address, small)
			if _, err := other.Save(ctx, "w", at(1, 100), tree(t, map[string]string{"model": "other"}), nil); !errors.Is(err, checkpoint.ErrTaken) {
				t.Errorf("a second checkpoint under one name: got %v, want %v", err, checkpoint.ErrTaken)
			}
			if err := other.Begin(ctx, "w", 2, at(1, 100)); err != nil {
				t.Fatal(err)
			}
			if err := s.Begin(ctx, "w", 2, checkpoint.ID{}); !errors.Is(err, checkpoint.ErrTaken) {
				t.Errorf("a second beginning of one epoch: got %v, want %v", err, checkpoint.ErrTaken)
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, _, err := other.RestoreNewest(ctx, checkpoint.Query{Workload: "w", Epoch: 2}, out, nil); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(content(t, dir), content(t, out)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAStoreThatIgnoresConditionsHoldsNoCheckpoints(t *testing.T) {
	deaf := func(h http.Handler) http.Handler { return &vendor{under: h} }
	s := openS3(t, s3Server(t, "s3", deaf), small)
	_, err := s.Save(ctx, "w", at(1, 1), tree(t, map[string]string{"model": "x"}), nil)
	if !errors.Is(err, checkpoint.ErrUnconditional) {
		t.Errorf("save: got %v, want %v", err, checkpoint.ErrUnconditional)
	}
	if err := s.Begin(ctx, "w", 1, checkpoint.ID{}); !errors.Is(err, checkpoint.ErrUnconditional) {
		t.Errorf("begin: got %v, want %v", err, checkpoint.ErrUnconditional)
	}
}

func TestAnAddressThatCannotBeAStoreIsToldWithWhatWouldBe(t *testing.T) {
	for address, want := range map[string]string{
		"s3://bucket?dialect=nosuch":             "want aws, oss, cos, obs, tos, gcs or s3",
		"s3://bucket?region=us-east-1&colour=no": "colour",
		"ftp://bucket":                           "ftp",
	} {
		_, err := checkpoint.Open(ctx, address, key, small)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", address, err, want)
		}
	}
}

// plainBucket opens the same store without anything of ours.
func plainBucket(b *testing.B, address string) *blob.Bucket {
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	q := u.Query()
	q.Del("dialect")
	q.Set("region", "us-east-1")
	u.RawQuery = q.Encode()
	bucket, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { bucket.Close() })
	return bucket
}

// BenchmarkS3 measures a save and a restore on a store in the network beside a plain copy of the same bytes to and from
// the same store, the copy read seen to the disk as a restore is.
func BenchmarkS3(b *testing.B) {
	dir := benchFile(b)
	b.Run("PlainUpload", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			b.StopTimer()
			bucket := plainBucket(b, s3Server(b, "s3", asItIs))
			b.StartTimer()
			upload(b, bucket, filepath.Join(dir, "model.bin"))
		}
	})
	b.Run("Save", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			b.StopTimer()
			s := openS3(b, s3Server(b, "s3", asItIs), checkpoint.Options{})
			b.StartTimer()
			save(b, s, at(1, 1), dir)
		}
	})
	address := s3Server(b, "s3", asItIs)
	bucket := plainBucket(b, address)
	upload(b, bucket, filepath.Join(dir, "model.bin"))
	s := openS3(b, address, checkpoint.Options{})
	save(b, s, at(1, 1), dir)
	b.Run("PlainDownload", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			download(b, bucket, filepath.Join(b.TempDir(), "out"))
		}
	})
	b.Run("Restore", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			if _, err := s.Restore(ctx, "w", at(1, 1), filepath.Join(b.TempDir(), "out"), nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func upload(b *testing.B, bucket *blob.Bucket, name string) {
	in, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	if err := bucket.Upload(ctx, "copy", in, &blob.WriterOptions{ContentType: "application/octet-stream"}); err != nil {
		b.Fatal(err)
	}
}

func download(b *testing.B, bucket *blob.Bucket, name string) {
	out, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	if err := bucket.Download(ctx, "copy", out, nil); err != nil {
		b.Fatal(err)
	}
	if err := out.Sync(); err != nil {
		b.Fatal(err)
	}
}
