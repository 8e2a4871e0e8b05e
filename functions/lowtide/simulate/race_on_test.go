//go:build race

package simulate_test

// raced is true under the race detector, which makes tables and optimum ten times as slow.
const raced = true
