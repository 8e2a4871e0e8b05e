package events_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"lowtide/events"
)

// TestWhatWasEverOnTheWireIsStillRead: testdata/kept holds one event of every kind as versions before wrote them, a file a
// month in which something changed. No line is ever altered or removed: streams hold such events for 30 days, and backups
// for longer.
func TestWhatWasEverOnTheWireIsStillRead(t *testing.T) {
	files, err := filepath.Glob("testdata/kept/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
			e, err := events.Decode(line)
			if err != nil {
				t.Errorf("%s:%d: %v", file, i+1, err)
				continue
			}
			if _, unknown := e.Data.(events.Unknown); unknown {
				t.Errorf("%s:%d: nobody knows %s any more", file, i+1, e.Data.Kind())
			}
			again, err := events.Encode(e)
			if err != nil {
				t.Errorf("%s:%d: %v", file, i+1, err)
				continue
			}
			var was, is struct{ Data map[string]any }
			if json.Unmarshal(line, &was) != nil || json.Unmarshal(again, &is) != nil || !reflect.DeepEqual(was.Data, is.Data) {
				t.Errorf("%s:%d: handed on as %s", file, i+1, again)
			}
			// What a reader sees must be all that was said: each field of then still lands in a field of now.
			plain, err := json.Marshal(e.Data)
			if err != nil {
				t.Fatal(err)
			}
			var read map[string]any
			if err := json.Unmarshal(plain, &read); err != nil {
				t.Fatal(err)
			}
			for field := range was.Data {
				if _, ok := read[field]; !ok {
					t.Errorf("%s:%d: %s has lost its field %s", file, i+1, e.Data.Kind(), field)
				}
			}
		}
	}
}
