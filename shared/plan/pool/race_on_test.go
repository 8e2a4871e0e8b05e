//go:build race

package pool_test

// raced is true under the race detector, which makes a table ten times as slow to solve.
const raced = true
