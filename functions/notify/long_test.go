package notify_test

import "os"

// rounds is how often a random story is played: more with LOWTIDE_LONG=1.
func rounds(n int) int {
	if os.Getenv("LOWTIDE_LONG") != "" {
		return 20 * n
	}
	return n
}
