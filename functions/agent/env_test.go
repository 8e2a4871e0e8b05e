package agent_test

import (
	"strings"
	"testing"
	"time"

	"lowtide/functions/agent"
)

func TestSettingsAreReadFromUserData(t *testing.T) {
	env := map[string]string{
		"LOWTIDE_MACHINE": "m7", "LOWTIDE_FLEET": "team", "LOWTIDE_NATS": "tls://nats.example:4222", "LOWTIDE_NATS_TOKEN": "sesame",
		"LOWTIDE_BUCKET": "file:///tmp/b", "LOWTIDE_CKPT_KEY": "00112233445566778899aabbccddeeff",
		"LOWTIDE_LEASE": "2h", "LOWTIDE_HARD_END": "2026-01-02T00:00:00Z", "LOWTIDE_BENCH": `["bench","run"]`,
		"LOWTIDE_CLOCK": "1767225600000000000,1767225600000000000,60",
	}
	s, err := agent.FromEnv(func(n string) string { return env[n] })
	if err != nil {
		t.Fatal(err)
	}
	if s.Machine != "m7" || s.Lease != 2*time.Hour || s.HardEnd.Day() != 2 || len(s.Bench.Command) != 2 || s.Clock.Speed != 60 || len(s.Key) != 16 || s.Dir != "lowtide" {
		t.Errorf("got %+v", s)
	}
}

func TestEachWrongSettingHasOneLine(t *testing.T) {
	env := map[string]string{
		"LOWTIDE_FLEET": "team", "LOWTIDE_NATS": "not a url", "LOWTIDE_BUCKET": "file:///tmp/b", "LOWTIDE_CKPT_KEY": "short",
		"LOWTIDE_LEASE": "-1h", "LOWTIDE_HARD_END": "tomorrow", "LOWTIDE_BENCH": "bench", "LOWTIDE_CLOCK": "1",
	}
	_, err := agent.FromEnv(func(n string) string { return env[n] })
	if err == nil {
		t.Fatal("want errors")
	}
	lines := strings.Split(err.Error(), "\n")
	for _, name := range []string{"MACHINE", "NATS", "CKPT_KEY", "LEASE", "HARD_END", "BENCH", "CLOCK"} {
		n := 0
		for _, l := range lines {
			if strings.HasPrefix(l, "LOWTIDE_"+name+": ") {
				n++
			}
		}
		if n != 1 {
			t.Errorf("LOWTIDE_%s is named in %d lines, want 1 of:\n%s", name, n, err)
		}
	}
	if len(lines) != 7 || strings.Contains(err.Error(), "short") {
		t.Errorf("%d lines, want 7 and no key in them:\n%s", len(lines), err)
	}
}
