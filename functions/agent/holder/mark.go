package holder

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrNoFile is returned for a mark of a job that is no regular file.
var ErrNoFile = errors.New("no regular file")

// maxMark bounds LISTENING.
const maxMark = 64 << 10

// ReadMark reads the beginning of a file that a job may have put there, at most limit bytes. It never waits for the job:
// what is no regular file, such as a pipe that nobody writes to, is ErrNoFile.
func ReadMark(name string, limit int64) ([]byte, error) {
	f, err := OpenMark(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// OpenMark opens such a file for reading.
func OpenMark(name string) (*os.File, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // a device may do something when it is opened
		return nil, noFile(name, info)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may have become a pipe since
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = noFile(name, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func noFile(name string, info fs.FileInfo) error {
	return fmt.Errorf("%s (%s): %w", name, info.Mode(), ErrNoFile)
}
