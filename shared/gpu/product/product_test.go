package product_test

import (
	"math"
	"slices"
	"testing"

	"lowtide/shared/gpu/product"
)

// honest multiplies in double precision and rounds once, as a device that accumulates well does.
func honest(p product.Problem) product.Output {
	a, b, n := p.Singles(product.A), p.Singles(product.B), p.N
	c := make([]float32, n*n)
	for j := range n {
		for i := range n {
			sum := 0.0
			for l := range n {
				sum += float64(a[i*n+l]) * float64(b[j*n+l])
			}
			c[j*n+i] = float32(sum)
		}
	}
	return product.Output{Singles: c}
}

func TestOneNonceGivesTheSameInputsAndAnotherOthers(t *testing.T) {
	one, again, other := product.New("a", 64), product.New("a", 64), product.New("b", 64)
	if !slices.Equal(one.Singles(product.A), again.Singles(product.A)) {
		t.Error("the same nonce gave two inputs")
	}
	if slices.Equal(one.Singles(product.A), other.Singles(product.A)) {
		t.Error("two nonces gave the same input")
	}
	if slices.Equal(one.Singles(product.A), one.Singles(product.B)) {
		t.Error("both sides are the same")
	}
}

func TestInputsAreNearlyNormal(t *testing.T) {
	v := product.New("moments", 512).Singles(product.A)
	var sum, square, fourth float64
	for _, x := range v {
		sum += float64(x)
		square += float64(x) * float64(x)
		fourth += math.Pow(float64(x), 4)
	}
	n := float64(len(v))
	if mean := sum / n; math.Abs(mean) > 0.01 {
		t.Errorf("got mean %.4f, want 0", mean)
	}
	if deviation := math.Sqrt(square / n); math.Abs(deviation-1) > 0.01 {
		t.Errorf("got deviation %.4f, want 1", deviation)
	}
	if kurtosis := fourth / n / (square / n * square / n); math.Abs(kurtosis-2.7) > 0.05 { // four uniforms: 3 - 6/5/4
		t.Errorf("got kurtosis %.3f, want 2.7", kurtosis)
	}
}

// half widens half precision bits by the definition in IEEE 754.
func half(h uint16) float64 {
	v := math.Ldexp(float64(h&0x3ff)/1024, -14)
	if e := h >> 10 & 0x1f; e != 0 {
		v = math.Ldexp(1+float64(h&0x3ff)/1024, int(e)-15)
	}
	if h&0x8000 != 0 {
		return -v
	}
	return v
}

func TestHalfPrecisionHoldsEachInputExactly(t *testing.T) {
	p := product.New("exact", 256)
	for _, side := range []product.Side{product.A, product.B} {
		singles, halves := p.Singles(side), p.Halves(side)
		for i := range singles {
			if half(halves[i]) != float64(singles[i]) {
				t.Fatalf("value %d: half %v, single %v", i, half(halves[i]), singles[i])
			}
		}
	}
}

func TestAnHonestProductIsVerified(t *testing.T) {
	for _, n := range []int{64, 100, 256} {
		p := product.New("honest", n)
		check := p.Verify(honest(p))
		if !check.Verified || check.Worst > 0.5 {
			t.Errorf("n = %d: got %+v, want verified with room to spare", n, check)
		}
		if want := product.Expected("honest", n); check.Expected != want && math.Abs(check.Expected-want) > 1e-6 {
			t.Errorf("n = %d: got expected checksum %v, want %v", n, check.Expected, want)
		}
		if math.Abs(check.Checksum-check.Expected) > product.Tolerance(n) {
			t.Errorf("n = %d: checksum %v is further than %v from %v", n, check.Checksum, product.Tolerance(n), check.Expected)
		}
	}
}

func TestOneWrongElementIsFound(t *testing.T) {
	p := product.New("planted", 128)
	for _, at := range []int{0, 77, 128*128 - 1} {
		c := honest(p)
		c.Singles[at] += 0.05
		if p.Verify(c).Verified {
			t.Errorf("an error of 0.05 at %d passed", at)
		}
	}
}

func TestWhatIsNoProductIsRefused(t *testing.T) {
	p := product.New("now", 128)
	n := p.N * p.N
	notNumbers := honest(p)
	notNumbers.Singles[5] = float32(math.NaN())
	for name, c := range map[string]product.Output{
		"nothing":              {},
		"zeros":                {Singles: make([]float32, n)},
		"zeros in half":        {Halves: make([]uint16, n)},
		"another nonce's":      honest(product.New("before", 128)),
		"a smaller one":        {Singles: honest(p).Singles[:n/2]},
		"not a number":         notNumbers,
		"infinity everywhere":  {Halves: slices.Repeat([]uint16{0x7c00}, n)},
		"the transposed input": {Singles: p.Singles(product.A)},
	} {
		if check := p.Verify(c); check.Verified {
			t.Errorf("%s: got %+v, want refused", name, check)
		} else if math.IsNaN(check.Worst) || math.IsInf(check.Checksum, 0) || math.IsNaN(check.Checksum) {
			t.Errorf("%s: got %+v, want numbers that JSON can hold", name, check)
		}
	}
}
