package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"gocloud.dev/gcerrors"
)

// codeKey is where a workload's packed directory lies: under the workload, where its machines may read.
func codeKey(workload, sum string) string { return prefix(workload) + "code/" + sum }

// SaveCode keeps a workload's packed directory under its hash. What is there already stays.
func (s *Store) SaveCode(ctx context.Context, workload, sum string, packed []byte) error {
	if err := errors.Join(checkName(workload), checkName(sum)); err != nil {
		return err
	}
	key := codeKey(workload, sum)
	err := s.attempts(ctx, "write "+key, func(ctx context.Context, beat func(int)) error {
		_, err := s.put(ctx, key, packed, true, beat)
		if gcerrors.Code(err) == gcerrors.FailedPrecondition {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("save code of %s: %w", workload, err)
	}
	return nil
}

// Code returns a workload's packed directory as it is stored: the caller checks the hash. ErrNotFound if it is not there.
func (s *Store) Code(ctx context.Context, workload, sum string) ([]byte, error) {
	if err := errors.Join(checkName(workload), checkName(sum)); err != nil {
		return nil, err
	}
	b, err := s.get(ctx, codeKey(workload, sum))
	if err != nil {
		return nil, fmt.Errorf("code of %s: %w", workload, err)
	}
	return b, nil
}
