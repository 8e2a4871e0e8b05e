package agent

import (
	"io/fs"
	"path/filepath"
	"sync"
	"time"
)

// sizing is the size of a checkpoint, while it is measured. A tree may be as large as a whole disk, and a disk that is
// elsewhere may not answer: nobody who looks waits for it.
type sizing struct {
	path string
	step int64
	over chan struct{} // closed when the tree was walked

	mu    sync.Mutex
	bytes int64 // so far
	err   error
}

const (
	sizeWait = 50 * time.Millisecond // what the first look waits: nearly every checkpoint is measured by then
	sizeMost = 1 << 20               // entries that are counted; the size is for an estimate
)

// measure is the size of a checkpoint as far as it is known, or why there is none. One that does not answer is waited for
// before the next is looked at.
func (p *Processes) measure(l *Local) (int64, error) {
	same := p.size != nil && p.size.path == l.Path && p.size.step == l.Step
	if same {
		if bytes, err := p.size.look(); err == nil {
			return bytes, nil
		}
	}
	if p.size == nil || p.size.done() {
		p.size = &sizing{path: l.Path, step: l.Step, over: make(chan struct{})}
		go p.size.walk()
		select {
		case <-p.size.over:
		case <-time.After(sizeWait):
		}
		return p.size.look()
	}
	return 0, nil
}

func (s *sizing) look() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes, s.err
}

func (s *sizing) done() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

func (s *sizing) walk() {
	defer close(s.over)
	entries := 0
	err := filepath.WalkDir(s.path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entries++; entries > sizeMost {
			return filepath.SkipAll
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			s.mu.Lock()
			s.bytes += info.Size()
			s.mu.Unlock()
		}
		return nil
	})
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
}
