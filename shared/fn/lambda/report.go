package lambda

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"lowtide/shared/fn"
)

// report is what one invocation did.
type report struct {
	Handled, Failed, Dead, Said int
	Lag                         time.Duration // of the oldest message, from its storing until now
}

func (r *report) hear(batch []fn.Delivery, now time.Time) {
	for _, d := range batch {
		r.Lag = max(r.Lag, now.Sub(d.At))
	}
}

type metric struct {
	Name string `json:"Name"`
	Unit string `json:"Unit"`
}

type directive struct {
	Namespace  string     `json:"Namespace"`
	Dimensions [][]string `json:"Dimensions"`
	Metrics    []metric   `json:"Metrics"`
}

var metrics = []directive{{"lowtide", [][]string{{"fleet", "function"}}, []metric{
	{"Handled", "Count"}, {"Failed", "Count"}, {"Dead", "Count"}, {"Said", "Count"}, {"Lag", "Milliseconds"}, {"Took", "Milliseconds"},
}}}

// write logs an invocation; CloudWatch makes metrics of the same line (its embedded metric format).
func (h *Host) write(r *report, took time.Duration, err error) {
	level, text := slog.LevelInfo, ""
	if err != nil {
		level, text = slog.LevelWarn, err.Error()
	}
	h.log.LogAttrs(context.Background(), level, "invoked",
		slog.Group("_aws", slog.Int64("Timestamp", time.Now().UnixMilli()), slog.Any("CloudWatchMetrics", metrics)),
		slog.String("fleet", h.Fleet), slog.Int("Handled", r.Handled), slog.Int("Failed", r.Failed), slog.Int("Dead", r.Dead), slog.Int("Said", r.Said),
		slog.Float64("Lag", float64(r.Lag.Microseconds())/1e3), slog.Float64("Took", float64(took.Microseconds())/1e3), slog.String("err", text))
}

// Identity is a function's answer to {"probe":"whoami"}: a deployment checks that each function runs its own code.
type Identity struct {
	Function string `json:"function"`
	Binary   string `json:"binary"` // SHA-256 of the program
	Arch     string `json:"arch"`
	Go       string `json:"go"`
}

func (h *Host) whoami() Identity {
	return Identity{h.name, binaryDigest(), runtime.GOARCH, runtime.Version()}
}

var binaryDigest = sync.OnceValue(func() string {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
})

// digest is a number that tells documents apart.
func digest(b []byte) uint64 {
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:8])
}
