//go:build !race

package prices_test

const raced = false // the race detector takes several times the time
