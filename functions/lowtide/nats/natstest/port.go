package natstest

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

const lowest, count = 15000, 15000 // up to 30000: Linux deals from 32768 on to whoever asks for any port

var dealt atomic.Int64

// Port is a loopback port for a server that must be told one. Each is given once, and from below those that the kernel
// deals: what is free now is then nobody else's when the server starts seconds later.
func Port(t testing.TB) int {
	t.Helper()
	for range count {
		n := os.Getpid()*97 + int(dealt.Add(1)) // test binaries that run at once begin apart
		port := lowest + n%count
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
		if err != nil {
			continue
		}
		l.Close()
		return port
	}
	t.Fatalf("no port is free from %d to %d", lowest, lowest+count)
	return 0
}
