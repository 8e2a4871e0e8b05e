package providertest

import (
	"os"
	"path/filepath"
	"testing"
)

// Sample reads bytes to a vendor's schema, which lie beside the repository: in $LOWTIDE_SHARED/samples, or in ../shared/samples
// as an adapter's package sees it. Without them the test is skipped with the reason, but not in CI.
func Sample(t testing.TB, name string) []byte {
	t.Helper()
	dir := os.Getenv("LOWTIDE_SHARED")
	if dir == "" {
		dir = "../../../../shared"
	}
	b, err := os.ReadFile(filepath.Join(dir, "samples", name))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("the samples are not here: %v", err)
	}
	return b
}
