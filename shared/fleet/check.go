package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// MaxSpec is how large a workload may be, as JSON: it is part of each order to its machines, and of the fleet's state.
const MaxSpec = 64 << 10

// FarAway is how far ahead a time may lie, and how long a duration may be.
const FarAway = 10 * 365 * 24 * time.Hour

// MaxGPUs is the most that one machine on sale anywhere has; 16 is p2.16xlarge and Alibaba's largest.
const MaxGPUs = 16

// Check says why a workload cannot be taken, whatever door it came through: what it holds goes into names, orders and
// sums everywhere. The error begins with the field, as the workload file calls it.
func (s Spec) Check(now time.Time) error {
	if err := CheckName(s.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	switch {
	case len(s.Run) == 0:
		return errors.New("run: missing; give the command that trains")
	case s.Work <= 0 || s.Work > FarAway:
		return fmt.Errorf("work: %s is not above 0 and at most ten years", s.Work)
	case s.GPUs < 0 || s.GPUs > MaxGPUs:
		return fmt.Errorf("gpus: %d GPUs on one machine are not sold; give 0 (any) to %d", s.GPUs, MaxGPUs)
	case s.Steps < 0:
		return fmt.Errorf("steps: %d is negative; leave it out if the job reports its own", s.Steps)
	case s.Deadline.After(now.Add(FarAway)):
		return fmt.Errorf("deadline: %s is more than ten years away", s.Deadline.Format(time.RFC3339))
	case s.SaveEvery < 0 || s.SaveEvery > FarAway || s.IdleGrace < 0 || s.IdleGrace > FarAway:
		return errors.New("checkpoint: it and idle_grace want durations of at most ten years")
	}
	if m, ok := s.Budget.Get(); ok && !m.Amount.IsPositive() {
		return fmt.Errorf("budget: %s is not above 0", m)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("env: the workload cannot be written as JSON: %w", err)
	}
	if len(b) > MaxSpec {
		return fmt.Errorf("env: the whole workload is %d bytes, and %d may be: put what is large into workdir or a bucket, not into run or env", len(b), MaxSpec)
	}
	return nil
}

// CheckName keeps names fit for subjects, keys and labels on every cloud.
func CheckName(s string) error {
	if s == "" {
		return errors.New("missing; give the workload a name")
	}
	if len(s) > 48 {
		return fmt.Errorf("%d characters; 48 at most, since clouds' labels are short", len(s))
	}
	for i, r := range s {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' && i > 0 {
			continue
		}
		return fmt.Errorf("%q: use lower-case letters, digits and '-'", s)
	}
	return nil
}
