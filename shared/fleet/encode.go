package fleet

import (
	"fmt"
	"sync"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"
)

// encoding writes times as seconds with microseconds and sorts nothing: maps are written as they come,
// since the value is compared by its fold position, never by its bytes.
var encoding = func() cbor.EncMode {
	m, err := cbor.EncOptions{Time: cbor.TimeUnixMicro, BinaryMarshaler: cbor.BinaryMarshalerByteString}.EncMode()
	if err != nil {
		panic(err)
	}
	return m
}()

var (
	packer = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			panic(err)
		}
		return e
	})
	unpacker = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			panic(err)
		}
		return d
	})
)

// Encoder writes fleets in their stored form, CBOR with the JSON names, compressed. It remembers each workload and
// machine as it last wrote it, so that a save costs what has changed. One Encoder belongs to one fleet.
// The zero Encoder is ready.
type Encoder struct {
	workloads remembered[Workload]
	machines  remembered[Instance]
}

// remembered holds entities by key: as they were, and their bytes. A change is seen by comparing, so an entity's
// pointers must be replaced and never edited.
type remembered[T comparable] map[string]written[T]

type written[T comparable] struct {
	was   T
	bytes cbor.RawMessage
}

func (r *remembered[T]) encode(now map[string]*T) (map[string]cbor.RawMessage, error) {
	out, next := make(map[string]cbor.RawMessage, len(now)), *r
	if len(next) > len(now) || next == nil {
		next = make(remembered[T], len(now)) // somebody left: forget all who are not there
	}
	for key, v := range now {
		w, ok := (*r)[key]
		if !ok || w.was != *v {
			b, err := encoding.Marshal(v)
			if err != nil {
				return nil, err
			}
			w = written[T]{*v, b}
		}
		next[key], out[key] = w, w.bytes
	}
	*r = next
	return out, nil
}

// image is a Fleet with its entities encoded.
type image struct {
	*Fleet
	Workloads map[string]cbor.RawMessage `json:"workloads"`
	Machines  map[string]cbor.RawMessage `json:"machines"`
}

// Encode returns the stored form of f.
func (e *Encoder) Encode(f *Fleet) ([]byte, error) {
	im := image{Fleet: f}
	var err error
	if im.Workloads, err = e.workloads.encode(f.Workloads); err == nil {
		im.Machines, err = e.machines.encode(f.Machines)
	}
	var b []byte
	if err == nil {
		b, err = encoding.Marshal(im)
	}
	if err != nil {
		return nil, fmt.Errorf("encode fleet %s: %w", f.Name, err)
	}
	return packer().EncodeAll(b, make([]byte, 0, len(b)/6)), nil
}

// Decode reads what Encoder wrote.
func Decode(b []byte) (*Fleet, error) {
	raw, err := unpacker().DecodeAll(b, nil)
	if err != nil {
		return nil, fmt.Errorf("decode fleet: %w", err)
	}
	f := New("", "")
	if err := cbor.Unmarshal(raw, f); err != nil {
		return nil, fmt.Errorf("decode fleet: %w", err)
	}
	return f, nil
}
