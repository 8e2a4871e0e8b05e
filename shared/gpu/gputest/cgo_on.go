//go:build cgo

package gputest

const cgo = true
