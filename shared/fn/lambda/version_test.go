package lambda_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/fn/lambda"
)

// testdata/kept holds what relays and functions before said to each other; both are deployed on their own.
func TestABatchOfAnotherVersionsRelayIsRead(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	var heard []uint64
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Function: hear(func(_ context.Context, e events.MachineHeard) ([]events.Event, error) {
		heard = append(heard, e.Beat)
		return nil, nil
	})})
	for _, file := range []string{"testdata/kept/2026-11-batch.json", "testdata/newer-batch.json"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		heard = nil
		if a := invoke(t, h, b); len(a.Handled) != 2 || len(a.Failed) > 0 || len(heard) != 2 {
			t.Errorf("%s: %+v, heard %v", file, a, heard)
		}
	}
}

func TestAnAnswerOfAnotherVersionsFunctionIsRead(t *testing.T) {
	for _, raw := range []string{
		`{"handled":[7,8],"failed":[{"seq":9,"why":"away","passing":true},{"seq":10,"why":"not ours","dead":true}]}`, // 2026-11
		`{"handled":[7,8],"moons":3,"failed":[{"seq":9,"why":"away","passing":true,"after":"5s"},{"seq":10,"why":"not ours","dead":true}]}`,
	} {
		var a lambda.Answer
		if err := json.Unmarshal([]byte(raw), &a); err != nil || len(a.Handled) != 2 || !a.Failed[0].Passing || !a.Failed[1].Dead {
			t.Errorf("%s reads as %+v, %v", raw, a, err)
		}
	}
}
