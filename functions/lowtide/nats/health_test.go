package embedded

import (
	"strings"
	"testing"
)

func TestAServerWhoseStoreHasShutDownIsNotHealthyUntilItIsStartedAnew(t *testing.T) {
	s, err := Start(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown()
	if err := s.Healthy(); err != nil {
		t.Errorf("healthy: %v", err)
	}
	if err := s.running.DisableJetStream(); err != nil { // as the server does of itself when a write fails for want of room
		t.Fatal(err)
	}
	if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), s.dir) {
		t.Errorf("without JetStream: %v, want the directory named", err)
	}
	s.Shutdown()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := s.Healthy(); err != nil {
		t.Errorf("started anew: %v", err)
	}
}
