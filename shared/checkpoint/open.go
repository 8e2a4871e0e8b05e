package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/azureblob" // azblob://
	_ "gocloud.dev/blob/fileblob"  // file://
	_ "gocloud.dev/blob/memblob"   // mem://
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
)

// ErrUnconditional: the store overwrites an object that was to be written only if absent. Two runs could then both
// believe that they committed, so it cannot hold checkpoints.
var ErrUnconditional = errors.New("checkpoint: the store does not keep what it was asked not to overwrite")

// Open returns a store on the bucket at a URL. Close it after use. "?prefix=a/" keeps everything below a prefix.
//
//	file:///a/directory   made if absent
//	mem://                empty, gone with the process
//	azblob://container    account and credentials as the Azure SDK finds them
//	s3://bucket           credentials as the AWS SDK finds them; region=, profile=, role= and what else
//	                      gocloud.dev/aws knows. endpoint=https://… is another store that speaks S3: OSS, COS, OBS, TOS
//	                      and GCS are known by the endpoint's domain (or dialect=oss, …), MinIO and others are dialect=s3;
//	                      use_path_style=true|false where the dialect's own choice is wrong.
//
// A bucket in the network is tried before the first Begin or Save of each workload, which return ErrUnconditional if it
// ignores the condition that a commit rests on.
func Open(ctx context.Context, address string, key []byte, o Options) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: open store: %w", err)
	}
	var dir, below string
	if u.Scheme == "file" {
		q := u.Query()
		q.Set("create_dir", "true")
		q.Set("dir_file_mode", "0700") // checkpoints are somebody's model
		// A temporary file on another file system could not be renamed into place.
		q.Set("no_tmp_dir", "true")
		// Without it every object has a second file and an MD5 that nobody reads.
		q.Set("metadata", "skip")
		u.RawQuery = q.Encode()
		dir, below = u.Path, q.Get("prefix")
	}
	b, err := openBucket(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: open %s: %w", u.Redacted(), err)
	}
	s := New(b, key, o)
	s.dir, s.below = dir, below
	s.remote = u.Scheme != "file" && u.Scheme != "mem"
	return s, nil
}

func openBucket(ctx context.Context, u *url.URL) (*blob.Bucket, error) {
	if u.Scheme == s3blob.Scheme {
		return openS3(ctx, u)
	}
	return blob.OpenBucket(ctx, u.String())
}

// tryCondition writes an object only if absent, twice: the second time, at the latest, must be refused. The object
// lies under the workload, where its machine may write, and once there it stays.
func (s *Store) tryCondition(ctx context.Context, w *workload, name string) error {
	w.mu.Lock()
	tried := w.tried || !s.remote
	w.mu.Unlock()
	if tried {
		return nil
	}
	key := prefix(name) + "once"
	for range 2 {
		err := s.attempts(ctx, "write "+key, func(ctx context.Context, beat func(int)) error {
			_, err := s.put(ctx, key, []byte("lowtide"), true, beat)
			return err
		})
		if gcerrors.Code(err) == gcerrors.FailedPrecondition {
			w.mu.Lock()
			w.tried = true
			w.mu.Unlock()
			return nil
		}
		if err != nil {
			return err
		}
	}
	return ErrUnconditional
}

// Close closes the bucket. Call it only on a store from Open, after all other calls have returned.
func (s *Store) Close() error { return s.bucket.Close() }
