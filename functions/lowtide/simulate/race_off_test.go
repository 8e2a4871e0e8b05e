//go:build !race

package simulate_test

const raced = false
