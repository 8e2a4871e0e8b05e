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

// Encode is the stored form of a fleet: CBOR with the JSON names, compressed.
func Encode(f *Fleet) ([]byte, error) {
	b, err := encoding.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode fleet %s: %w", f.Name, err)
	}
	return packer().EncodeAll(b, make([]byte, 0, len(b)/6)), nil
}

// Decode reads what Encode wrote.
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
