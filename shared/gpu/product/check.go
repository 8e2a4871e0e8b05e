package product

import (
	"math"
	"runtime"
	"sync"
)

// vectors is how many sign vectors a check uses. One misses a wrong product with probability up to one half in exact
// arithmetic, so eight miss it in at most one of 256.
const vectors = 8

// slack is the tolerance in standard deviations of the rounding that an honest device does.
const slack = 8

// Output is a product as a device gave it back, column after column, in single or in half precision.
type Output struct {
	Singles []float32
	Halves  []uint16
}

// Check is what the verification of one product found.
type Check struct {
	Verified bool    `json:"verified"`
	Vectors  int     `json:"vectors"`
	Worst    float64 `json:"worst"`    // largest deviation, in units of the tolerance; at most 1 when verified
	Checksum float64 `json:"checksum"` // u·C·r for signs u and r of the nonce
	Expected float64 `json:"expected"` // u·A·(B·r), from the inputs alone
	Tolerant float64 `json:"tolerance"`
}

// Verify tests one output against the problem's inputs. See Verifier for many.
func (p Problem) Verify(out Output) Check { return p.Verifier()(out) }

// Verifier gives a function that tests outputs against the problem's inputs; what follows from the inputs alone is computed
// once, at its first call. It may be called at once from several goroutines. It finds any error larger than a row's
// rounding, which for half precision at n = 8192 is about 13 in one element of a deviation of 90; it is not a bitwise
// comparison.
func (p Problem) Verifier() func(Output) Check {
	expected := sync.OnceValue(p.expected)
	return func(out Output) Check {
		if len(out.Singles) != p.N*p.N && len(out.Halves) != p.N*p.N {
			return Check{Vectors: vectors, Worst: math.MaxFloat64}
		}
		return p.compare(expected(), out)
	}
}

func (p Problem) compare(want [vectors][]float64, out Output) Check {
	n := p.N
	check := Check{Vectors: vectors, Verified: true}
	got, variance := p.applied(out)
	sum, wanted, spreadSum := 0.0, 0.0, 0.0
	for v := range vectors {
		for i := range n {
			// A comparison with NaN is false, so an output that is not a number fails by asking for "within".
			off := math.Abs(got[v][i]-want[v][i]) / (slack * math.Sqrt(variance[i]))
			if !(off <= 1) {
				check.Verified = false
			}
			if !(off <= check.Worst) {
				check.Worst = off
			}
		}
	}
	for i := range n {
		s := p.sign(vectors, i)
		sum += s * got[0][i]
		wanted += s * want[0][i]
		spreadSum += variance[i]
	}
	check.Checksum, check.Expected, check.Tolerant = finite(sum), wanted, finite(slack*math.Sqrt(spreadSum))
	check.Worst = finite(check.Worst)
	return check
}

// Expected is the checksum that an honest device reports for a nonce and size, computed from the inputs alone. It costs
// n² and needs no device, so whoever gave the order can check the answer.
func Expected(nonce string, n int) float64 {
	p := New(nonce, n)
	br := make([]float64, n)
	line := make([]int16, n)
	for j := range n {
		p.Line(B, j, line)
		s := p.sign(0, j)
		for l, v := range line {
			br[l] += s * float64(v) / unit
		}
	}
	sum := 0.0
	for i := range n {
		p.Line(A, i, line)
		dot := 0.0
		for l, v := range line {
			dot += float64(v) / unit * br[l]
		}
		sum += p.sign(vectors, i) * dot
	}
	return sum
}

// expected is A·(B·r) for each sign vector r, one slice a vector.
func (p Problem) expected() [vectors][]float64 {
	n := p.N
	var br, abr [vectors][]float64
	for v := range vectors {
		br[v], abr[v] = make([]float64, n), make([]float64, n)
	}
	line := make([]int16, n)
	for j := range n {
		p.Line(B, j, line)
		for v := range vectors {
			s := p.sign(v, j) / unit
			to := br[v]
			for l, x := range line {
				to[l] += s * float64(x)
			}
		}
	}
	p.lines(A, func(i int, line []int16) {
		for v := range vectors {
			dot := 0.0
			for l, x := range line {
				dot += float64(x) * br[v][l]
			}
			abr[v][i] = dot / unit
		}
	})
	return abr
}

// applied is C·r for each sign vector, and for each row the variance of the rounding that an honest device may show.
func (p Problem) applied(out Output) (y [vectors][]float64, variance []float64) {
	n := p.N
	for v := range vectors {
		y[v] = make([]float64, n)
	}
	variance = make([]float64, n)
	signs := make([][vectors]float64, n)
	for j := range signs {
		for v := range vectors {
			signs[j][v] = p.sign(v, j)
		}
	}
	workers := runtime.GOMAXPROCS(0)
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() { p.applyRows(out, signs, w*n/workers, (w+1)*n/workers, &y, variance) })
	}
	wait.Wait()
	return y, variance
}

// applyRows fills rows from to to of y and variance.
func (p Problem) applyRows(out Output, signs [][vectors]float64, from, to int, y *[vectors][]float64, variance []float64) {
	n, half := p.N, len(out.Halves) == p.N*p.N
	// Sums of k products in single precision wander by about sqrt(k) roundings of the partial sum, itself of size
	// sqrt(k); the factor of two covers orders of summation other than ours.
	root := math.Sqrt(float64(n))
	for j := range n {
		for i := from; i < to; i++ {
			var c float64
			if half {
				c = float64(single(out.Halves[j*n+i]))
			} else {
				c = float64(out.Singles[j*n+i])
			}
			for v := range vectors {
				y[v][i] += signs[j][v] * c
			}
			sum := 0x1p-23 * root * (math.Abs(c) + root)
			variance[i] += sum * sum
			if half {
				ulp := math.Abs(c) * 0x1p-10
				variance[i] += ulp * ulp / 12
			}
		}
	}
}

// sign is element i of sign vector v, drawn from the nonce and from neither input.
func (p Problem) sign(v, i int) float64 {
	if mix(p.a^p.b+uint64(v+1)*0xd1342543de82ef95+uint64(i)*0x9e3779b97f4a7c15)&1 == 0 {
		return 1
	}
	return -1
}

// single widens half precision bits.
func single(h uint16) float32 {
	sign, exponent, fraction := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0:
		f := float32(fraction) * 0x1p-24
		if sign != 0 {
			f = -f
		}
		return f
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// finite keeps a number fit for JSON.
func finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return math.MaxFloat64
	}
	return x
}

// Tolerance is how far an honest device's checksum may be from Expected at a size, in any precision this package knows.
func Tolerance(n int) float64 {
	elements, size := float64(n)*float64(n), math.Sqrt(float64(n)) // n² elements, each of deviation sqrt(n)
	ulp := size * 0x1p-10
	sum := 0x1p-23 * size * 2 * size
	return slack * math.Sqrt(elements*(ulp*ulp/12+sum*sum))
}
