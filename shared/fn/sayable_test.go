package fn_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/shared/fn"
)

func TestOneEventThatCannotBeSaidKeepsNoOtherFromBeingHeard(t *testing.T) {
	fine := events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: 1})
	large := events.New("f", "test", time.Time{}, events.WorkloadRefused{Workload: "w", Why: strings.Repeat("x", events.MaxBytes)})
	late := events.New("f", "test", time.Time{}, events.InstanceInterrupted{Machine: "m", EndsBy: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)})
	good, err := fn.Sayable([]events.Event{large, fine, late})
	if len(good) != 1 || good[0].ID != fine.ID {
		t.Errorf("kept %d, want the fine one alone", len(good))
	}
	if !errors.Is(err, events.ErrUnsayable) || !strings.Contains(err.Error(), "workload.refused") || !strings.Contains(err.Error(), "instance.interrupted") {
		t.Errorf("got %v, want both named", err)
	}
	if late.ID == events.New("f", "test", time.Time{}, events.InstanceInterrupted{Machine: "n", EndsBy: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}).ID {
		t.Error("two facts that cannot be encoded have one id")
	}
}
