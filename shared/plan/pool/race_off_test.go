//go:build !race

package pool_test

const raced = false
