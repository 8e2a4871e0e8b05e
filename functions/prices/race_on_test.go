//go:build race

package prices_test

const raced = true
