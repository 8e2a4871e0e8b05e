package fake

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"lowtide/shared/fleet"
)

// entry is one line of the journal: a machine's whole state after a change, a writing call, or how the cloud began.
type entry struct {
	ID     string             `json:"id,omitempty"`
	Origin *time.Time         `json:"origin,omitempty"`
	Rental *Rental            `json:"rental,omitempty"`
	Write  *Write             `json:"write,omitempty"`
	Booked *fleet.Reservation `json:"booked,omitempty"`
}

// journal is an append-only file; each line is on disk before append returns.
type journal struct{ f *os.File }

// openJournal reads the journal in dir, or begins one. A last line that a crash cut off was never answered and is
// dropped; damage before the last line is an error.
func openJournal(dir string, replay func(entry)) (*journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name := filepath.Join(dir, "journal.jsonl")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	good, err := readJournal(f, replay)
	if err == nil {
		err = f.Truncate(good)
	}
	if err == nil {
		_, err = f.Seek(good, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", name, err), f.Close())
	}
	return &journal{f}, nil
}

// readJournal replays whole lines and returns where the last of them ends.
func readJournal(r io.Reader, replay func(entry)) (good int64, err error) {
	br := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := br.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return good, nil // also when a part of a line is left: it was cut off
		}
		if err != nil {
			return good, err
		}
		var e entry
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return good, fmt.Errorf("line %d: %w", n, err)
		}
		replay(e)
		good += int64(len(line))
	}
}

func (j *journal) append(e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if _, err := j.f.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return j.f.Sync()
}

func (j *journal) close() error { return j.f.Close() }
