// Package product makes the two matrices of a benchmark from a nonce and checks that a result is their product.
//
// It promises the same inputs, bit for bit, on every machine: each value is a multiple of 1/1024 that half precision
// holds exactly, and the values are close to normal with mean 0 and deviation 1, because the data decide how much power
// a multiplication draws. The check is Freivalds' (R. Freivalds, "Fast probabilistic algorithms", 1979): for a sign
// vector r, C r must equal A (B r), which costs n² instead of n³. A library that computes nothing, or replays an older
// answer, fails it.
//
// It does not multiply and knows no device.
package product

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"runtime"
	"sync"
)

// unit is the value's resolution: every value is an integer divided by it.
const unit = 1024

// spread makes the sum of four uniform integers below it have deviation 1024: 4·spread²/12 = 1024².
const spread = 1774

// Problem is C = A·B of square matrices seeded by a nonce. A is held by rows and B by columns, both n values long.
type Problem struct {
	N     int
	nonce string
	a, b  uint64
}

// New seeds a problem. Equal nonces and sizes give equal inputs.
func New(nonce string, n int) Problem {
	sum := sha256.Sum256([]byte("lowtide benchmark inputs\x00" + nonce))
	return Problem{
		N: n, nonce: nonce,
		a: binary.LittleEndian.Uint64(sum[0:]), b: binary.LittleEndian.Uint64(sum[8:]),
	}
}

// Flops is the work of one product: a multiplication and an addition for each of n³ terms.
func (p Problem) Flops() float64 { return 2 * float64(p.N) * float64(p.N) * float64(p.N) }

// Side names one of the inputs.
type Side int

// The inputs: A, whose lines are rows, and B, whose lines are columns.
const (
	A Side = iota
	B
)

// Line writes line i of a side as integers in units of 1/1024; dst has length n.
func (p Problem) Line(side Side, i int, dst []int16) {
	seed := p.a
	if side == B {
		seed = p.b
	}
	at := uint64(i) * uint64(p.N)
	for j := range dst {
		dst[j] = value(mix(seed + (at+uint64(j))*0x9e3779b97f4a7c15))
	}
}

// Singles is a whole side in single precision, line after line.
func (p Problem) Singles(side Side) []float32 {
	out := make([]float32, p.N*p.N)
	p.lines(side, func(i int, line []int16) {
		for j, v := range line {
			out[i*p.N+j] = float32(v) / unit
		}
	})
	return out
}

// Halves is a whole side as half precision bits, line after line.
func (p Problem) Halves(side Side) []uint16 {
	out := make([]uint16, p.N*p.N)
	p.lines(side, func(i int, line []int16) {
		for j, v := range line {
			out[i*p.N+j] = halfOf(v)
		}
	})
	return out
}

// Doubles is the leading n by n block of a side in double precision, for the ratio of precisions.
func (p Problem) Doubles(side Side, n int) []float64 {
	out := make([]float64, n*n)
	line := make([]int16, p.N)
	for i := range n {
		p.Line(side, i%p.N, line)
		for j := range n {
			out[i*n+j] = float64(line[j%p.N]) / unit
		}
	}
	return out
}

// lines calls f for each line of a side, on all cores.
func (p Problem) lines(side Side, f func(i int, line []int16)) {
	workers := runtime.GOMAXPROCS(0)
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			line := make([]int16, p.N)
			for i := w; i < p.N; i += workers {
				p.Line(side, i, line)
				f(i, line)
			}
		})
	}
	wait.Wait()
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// value sums four 16-bit lanes into an integer with mean 0 and deviation 1024. Above 2048 half precision holds only even
// integers, so the low bit goes.
func value(x uint64) int16 {
	sum := int32(0)
	for range 4 {
		sum += int32(x&0xffff) * spread >> 16
		x >>= 16
	}
	d := sum - 2*(spread-1)
	if d > 2048 || d < -2048 {
		d -= d % 2
	}
	return int16(d)
}

// halfOf is v/1024 in IEEE 754 half precision; v is an integer that value made, so nothing is rounded.
func halfOf(v int16) uint16 {
	if v == 0 {
		return 0
	}
	bits := math.Float32bits(float32(v) / unit)
	sign := uint16(bits >> 16 & 0x8000)
	exponent := int(bits>>23&0xff) - 127 + 15
	return sign | uint16(exponent)<<10 | uint16(bits>>13&0x3ff)
}
