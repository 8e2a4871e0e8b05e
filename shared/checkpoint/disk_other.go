//go:build !linux && !darwin

package checkpoint

func freeBytes(string) (int64, bool) { return 0, false }

// Other systems have no such lock: there one process at a time may commit to a file store.
func lockDir(string) (func(), error) { return func() {}, nil }

// Directories cannot be synced there.
func syncParents(string, string) error { return nil }

func syncDir(string) error { return nil }
