//go:build !race

package meter_test

const raced = false // the race detector takes several times the memory
