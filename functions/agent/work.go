package agent

import (
	"context"
	"sync"
	"time"
)

// work is what runs beside the agent. Each piece has a name, and of each name there is one at a time; it hands back
// what to do about its result, which the agent does in its own time. Only results is shared with the pieces.
type work struct {
	spawn   func(func())
	running map[string]*piece
	retry   map[string]time.Time
	begun   int // pieces ever begun

	ctx    context.Context // of all pieces: they outlive the call that begins them
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	results []func()
}

type piece struct{ cancel context.CancelFunc }

func (w *work) init(spawn func(func())) {
	w.running, w.retry = map[string]*piece{}, map[string]time.Time{}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.spawn = spawn
	if spawn == nil {
		w.spawn = func(f func()) { w.wait.Go(f) }
	}
}

func (w *work) close() {
	w.cancel()
	w.wait.Wait()
}

// begin runs do, which returns what to do about its result. Results of pieces that were dropped are thrown away.
func (w *work) begin(name string, do func(ctx context.Context) func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	p := &piece{cancel}
	w.running[name] = p
	w.begun++
	w.spawn(func() {
		then := do(ctx)
		cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.results = append(w.results, func() {
			if w.running[name] == p {
				delete(w.running, name)
				then()
			}
		})
	})
}

func (w *work) busy(name string) bool { return w.running[name] != nil }

// stop cancels a piece; its result counts, whatever it is.
func (w *work) stop(name string) {
	if p := w.running[name]; p != nil {
		p.cancel()
	}
}

// drop cancels a piece; whatever it still returns is thrown away.
func (w *work) drop(name string) {
	if p := w.running[name]; p != nil {
		p.cancel()
		delete(w.running, name)
	}
}

// again notes when a piece that failed may be begun anew.
func (w *work) again(name string, at time.Time) { w.retry[name] = at }
func (w *work) retryAt(name string) time.Time   { return w.retry[name] }

func (w *work) waiting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.results) > 0
}

// collect does what the finished pieces ask for.
func (w *work) collect() {
	w.mu.Lock()
	results := w.results
	w.results = nil
	w.mu.Unlock()
	for _, r := range results {
		r()
	}
}
