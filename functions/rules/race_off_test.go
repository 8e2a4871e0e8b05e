//go:build !race

package rules_test

const raceOn = false
