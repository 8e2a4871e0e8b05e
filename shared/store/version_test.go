package store

import "testing"

func TestVersionsBelow215AreTooOld(t *testing.T) {
	for v, want := range map[string]bool{
		"2.15.0": true, "2.15.3": true, "2.16.0-dev": true, "3.0.0": true, "2.14.9": false, "2.9.1": false, "1.20.0": false, "": false, "2": false,
	} {
		if got := newEnough(v); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}
