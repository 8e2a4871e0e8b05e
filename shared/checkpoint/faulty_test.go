package checkpoint_test

import (
	"context"
	"errors"
	"io"
	"sync"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"
)

// faulty is a bucket over another one whose operations can be watched, hang or fail. It is a driver, so that what
// is tested uses it as it would any store.
type faulty struct {
	driver.Bucket // nil: what is not overridden is not used
	under         *blob.Bucket

	mu    sync.Mutex
	count int
	// before is asked before each operation, with its number from 1; an error is the operation's.
	before func(ctx context.Context, n int, op, key string) error
	// after is asked when an operation has taken effect; an error is an answer that was lost.
	after func(n int, op, key string) error
	// bytes may change what is read.
	bytes func(key string, data []byte) []byte
}

func (f *faulty) open() *blob.Bucket { return blob.NewBucket(f) }

func (f *faulty) begin(ctx context.Context, op, key string) (int, error) {
	f.mu.Lock()
	f.count++
	n := f.count
	f.mu.Unlock()
	if f.before != nil {
		return n, f.before(ctx, n, op, key)
	}
	return n, nil
}

func (f *faulty) end(n int, op, key string, err error) error {
	if err == nil && f.after != nil {
		return f.after(n, op, key)
	}
	return err
}

func (f *faulty) Close() error            { return nil }
func (f *faulty) As(any) bool             { return false }
func (f *faulty) ErrorAs(error, any) bool { return false }
func (f *faulty) ErrorCode(err error) gcerrors.ErrorCode {
	if errors.Is(err, errRefused) {
		return gcerrors.PermissionDenied
	}
	return gcerrors.Code(err)
}

func (f *faulty) Attributes(ctx context.Context, key string) (*driver.Attributes, error) {
	if _, err := f.begin(ctx, "attributes", key); err != nil {
		return nil, err
	}
	a, err := f.under.Attributes(ctx, key)
	if err != nil {
		return nil, err
	}
	return &driver.Attributes{ModTime: a.ModTime, Size: a.Size}, nil
}

func (f *faulty) ListPaged(ctx context.Context, o *driver.ListOptions) (*driver.ListPage, error) {
	if _, err := f.begin(ctx, "list", o.Prefix); err != nil {
		return nil, err
	}
	token := o.PageToken
	if len(token) == 0 {
		token = blob.FirstPageToken
	}
	// Two objects a page: a listing that forgets the second page loses checkpoints.
	found, next, err := f.under.ListPage(ctx, token, 2, &blob.ListOptions{Prefix: o.Prefix})
	if err != nil {
		return nil, err
	}
	page := &driver.ListPage{NextPageToken: next}
	for _, x := range found {
		page.Objects = append(page.Objects, &driver.ListObject{Key: x.Key, ModTime: x.ModTime, Size: x.Size})
	}
	return page, nil
}

func (f *faulty) NewRangeReader(ctx context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	n, err := f.begin(ctx, "read", key)
	if err != nil {
		return nil, err
	}
	r, err := f.under.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if f.bytes != nil {
		data = f.bytes(key, data)
	}
	return &reading{data: data, attrs: driver.ReaderAttributes{ModTime: r.ModTime(), Size: r.Size()}}, f.end(n, "read", key, nil)
}

type reading struct {
	data  []byte
	attrs driver.ReaderAttributes
}

func (r *reading) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}
func (r *reading) Close() error                         { return nil }
func (r *reading) Attributes() *driver.ReaderAttributes { return &r.attrs }
func (r *reading) As(any) bool                          { return false }

func (f *faulty) NewTypedWriter(ctx context.Context, key, _ string, o *driver.WriterOptions) (driver.Writer, error) {
	return &writing{ctx: ctx, f: f, key: key, ifNotExist: o.IfNotExist}, nil
}

type writing struct {
	ctx        context.Context
	f          *faulty
	key        string
	ifNotExist bool
	data       []byte
}

func (w *writing) Write(p []byte) (int, error) {
	w.data = append(w.data, p...)
	return len(p), nil
}

func (w *writing) Close() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	n, err := w.f.begin(w.ctx, "write", w.key)
	if err != nil {
		return err
	}
	err = w.f.under.WriteAll(w.ctx, w.key, w.data, &blob.WriterOptions{IfNotExist: w.ifNotExist})
	return w.f.end(n, "write", w.key, err)
}

func (f *faulty) Delete(ctx context.Context, key string, _ *driver.DeleteOptions) error {
	n, err := f.begin(ctx, "delete", key)
	if err != nil {
		return err
	}
	return f.end(n, "delete", key, f.under.Delete(ctx, key))
}

var (
	errDied    = errors.New("the machine is gone")
	errRefused = errors.New("forbidden")
)
