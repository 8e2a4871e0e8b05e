package fleet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
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

// blockSize is how many entities are compressed together: many compress better, few are sooner done again.
const blockSize = 128

// Encoder writes fleets in their stored form: CBOR with the JSON names, compressed. It remembers each workload and
// machine as it last wrote it, in blocks that are compressed apart, so that a save costs what has changed.
// One Encoder belongs to one fleet. The zero Encoder is ready.
type Encoder struct {
	workloads remembered[Workload]
	machines  remembered[Instance]
	last      int // size of the last value
}

// remembered holds the entities that were written last. A change is seen by comparing, so an entity's pointers must be
// replaced and never edited.
type remembered[T comparable] struct {
	entities map[string]*written[T]
	blocks   []*block[T]
	round    int    // of Encode
	raw      []byte // scratch: one block before it is compressed
}

type written[T comparable] struct {
	was   T
	bytes []byte // its key and itself
	in    *block[T]
	round int // when it was last there
}

type block[T comparable] struct {
	entities []*written[T]
	packed   []byte // all of them; nil: to be done again
}

// pack appends now to out as a CBOR map, compressed. Made by hand: the library would check the bytes of every entity
// anew.
func (r *remembered[T]) pack(out []byte, now map[string]*T) ([]byte, error) {
	if r.entities == nil {
		r.entities = map[string]*written[T]{}
	}
	r.round++
	for key, v := range now {
		w := r.entities[key]
		if w == nil {
			w = &written[T]{in: r.room()}
			w.in.entities = append(w.in.entities, w)
			r.entities[key] = w
		}
		w.round = r.round
		if w.bytes != nil && w.was == *v {
			continue
		}
		k, err := encoding.Marshal(key)
		if err != nil {
			return nil, err
		}
		b, err := encoding.Marshal(v)
		if err != nil {
			return nil, err
		}
		w.was, w.bytes, w.in.packed = *v, append(k, b...), nil
	}
	if len(r.entities) > len(now) {
		r.forget()
	}
	out = packer().EncodeAll(binary.BigEndian.AppendUint32([]byte{0xba}, uint32(len(now))), out) // a map of so many pairs
	for _, b := range r.blocks {
		if b.packed == nil {
			r.raw = r.raw[:0]
			for _, w := range b.entities {
				r.raw = append(r.raw, w.bytes...)
			}
			b.packed = packer().EncodeAll(r.raw, make([]byte, 0, len(r.raw)/4))
		}
		out = append(out, b.packed...)
	}
	return out, nil
}

// room is a block that is not full.
func (r *remembered[T]) room() *block[T] {
	for _, b := range r.blocks {
		if len(b.entities) < blockSize {
			return b
		}
	}
	b := &block[T]{}
	r.blocks = append(r.blocks, b)
	return b
}

// forget drops who was not there in this round.
func (r *remembered[T]) forget() {
	gone := func(w *written[T]) bool { return w.round != r.round }
	for _, b := range r.blocks {
		before := len(b.entities)
		if b.entities = slices.DeleteFunc(b.entities, gone); len(b.entities) < before {
			b.packed = nil
		}
	}
	maps.DeleteFunc(r.entities, func(_ string, w *written[T]) bool { return gone(w) })
}

// image is a Fleet without what is encoded apart.
type image struct {
	*Fleet
	Workloads map[string]struct{} `json:"workloads,omitempty"`
	Machines  map[string]struct{} `json:"machines,omitempty"`
}

// Encode returns the stored form of f.
func (e *Encoder) Encode(f *Fleet) ([]byte, error) {
	b, err := encoding.Marshal(image{Fleet: f})
	if err == nil && (b[0]&0xe0 != 0xa0 || b[0]&0x1f > 21) {
		err = errors.New("more fields than a short map holds")
	}
	if err != nil {
		return nil, fmt.Errorf("encode fleet %s: %w", f.Name, err)
	}
	b[0] += 2 // the two that follow
	out := packer().EncodeAll(append(b, "\x69workloads"...), make([]byte, 0, e.last+e.last/8))
	if out, err = e.workloads.pack(out, f.Workloads); err == nil {
		out, err = e.machines.pack(packer().EncodeAll([]byte("\x68machines"), out), f.Machines)
	}
	if err != nil {
		return nil, fmt.Errorf("encode fleet %s: %w", f.Name, err)
	}
	e.last = len(out)
	return out, nil
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
