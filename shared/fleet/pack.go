package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Pack writes v as JSON, compressed: fifty thousand offers fit into one message of a store.
func Pack(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return packer().EncodeAll(b, make([]byte, 0, len(b)/8)), nil
}

// Unpack reads what Pack wrote into v, or plain JSON.
func Unpack(b []byte, v any) error {
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		plain, err := unpacker().DecodeAll(b, nil)
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
		b = plain
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	return nil
}
