//go:build !cgo

package gputest

const cgo = false
