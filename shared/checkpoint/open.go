package checkpoint

import (
	"context"
	"fmt"
	"net/url"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // file://
	_ "gocloud.dev/blob/memblob"  // mem://
)

// Open returns a store on the bucket at a URL: file:///a/directory (made if absent) or mem:// (empty, gone with
// the process). "?prefix=a/" keeps everything below a prefix. Close it after use.
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
	b, err := blob.OpenBucket(ctx, u.String())
	if err != nil {
		return nil, fmt.Errorf("checkpoint: open %s: %w", u.Redacted(), err)
	}
	s := New(b, key, o)
	s.dir, s.below = dir, below
	return s, nil
}

// Close closes the bucket. Call it only on a store from Open, after all other calls have returned.
func (s *Store) Close() error { return s.bucket.Close() }
