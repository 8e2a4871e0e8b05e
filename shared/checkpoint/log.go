package checkpoint

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxLog is how many bytes of what a run printed are kept.
const MaxLog = 256 << 10

// Log is the end of what one run of a workload printed. It lies beside the checkpoints because it must outlive its
// machine as they do. It is not sealed: it tells people something, and nothing is decided by it.
type Log struct {
	Machine string `json:"machine"`
	Epoch   int64  `json:"epoch"`
	From    int64  `json:"from"` // bytes printed before Text, as far as its machine knows
	Text    []byte `json:"text"` // MaxLog bytes at most, as they were printed
}

func logKey(workload string, epoch int64) string {
	return fmt.Sprintf("%slogs/%020d.json", prefix(workload), epoch)
}

// SaveLog replaces what is kept of a run's log.
func (s *Store) SaveLog(ctx context.Context, workload string, l Log) error {
	if err := checkName(workload); err != nil {
		return err
	}
	if over := len(l.Text) - MaxLog; over > 0 {
		l.Text, l.From = l.Text[over:], l.From+int64(over)
	}
	b, err := json.Marshal(l)
	if err == nil {
		_, err = s.putUnsynced(ctx, logKey(workload, l.Epoch), b, false, false, nil)
	}
	if err != nil {
		return fmt.Errorf("save log of %s, epoch %d: %w", workload, l.Epoch, err)
	}
	return nil
}

// Logs returns what is kept of all runs' logs, oldest first.
func (s *Store) Logs(ctx context.Context, workload string) ([]Log, error) {
	if err := checkName(workload); err != nil {
		return nil, err
	}
	var keys []string
	err := s.each(ctx, prefix(workload)+"logs/", func(o object) error {
		keys = append(keys, o.key)
		return nil
	})
	var out []Log
	for _, key := range keys {
		b, gerr := s.get(ctx, key)
		if errors.Is(gerr, ErrNotFound) {
			continue
		}
		var l Log
		if gerr == nil {
			gerr = json.Unmarshal(b, &l)
		}
		if gerr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", key, gerr))
			continue
		}
		out = append(out, l)
	}
	if err != nil {
		return out, fmt.Errorf("logs of %s: %w", workload, err)
	}
	slices.SortFunc(out, func(a, b Log) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return out, nil
}
