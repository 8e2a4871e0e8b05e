//go:build !linux && !darwin

package holder

import (
	"os"
	"syscall"
)

const sigSave = syscall.Signal(0)

func detached() *syscall.SysProcAttr                      { return nil }
func lock(string, bool) (func(), error)                   { return nil, ErrUnsupported }
func inherited() *os.File                                 { return nil }
func identity(int) (string, bool, error)                  { return "", false, ErrUnsupported }
func inGroup(int, int) bool                               { return false }
func send(Process, syscall.Signal) error                  { return ErrUnsupported }
func killGroup(Process) error                             { return ErrUnsupported }
func hold(string, []string, int64, int64, *os.File) error { return ErrUnsupported }
func gate([]string) error                                 { return ErrUnsupported }
