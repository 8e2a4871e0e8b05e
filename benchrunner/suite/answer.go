package suite

import (
	"errors"
	"fmt"
	"math"
	"time"

	"lowtide/shared/gpu/product"
)

// The reasons for which an answer is not one to the order. A repeated answer shows as ErrUnordered when each order has a
// nonce of its own.
var (
	ErrUnordered  = errors.New("answers another order")
	ErrImpossible = errors.New("took longer by its own account than the order was open")
	ErrShort      = errors.New("worked less than ordered")
	ErrProduct    = errors.New("product does not follow from the nonce")
)

// Order is what whoever asked for a benchmark remembers of it.
type Order struct {
	Nonce string
	Size  int           // edge of the matrices
	Work  time.Duration // the least that each device must have multiplied; 0 for any
}

// Answers holds a result against its order and the time that passed outside the machine, from giving the order to hearing
// the result. It costs Size² and needs no device.
//
// It refuses answers to other orders, repeated ones, and ones that came too fast for the work they claim. It cannot refuse
// a host that replaces the runner itself and computes the checksum from the nonce: what such a host cannot do is finish a
// real workload at the speed it claims, which is measured later.
func (r Result) Answers(o Order, outside time.Duration) error {
	if r.Nonce != o.Nonce || r.Size != o.Size {
		return fmt.Errorf("nonce %q, size %d: %w", r.Nonce, r.Size, ErrUnordered)
	}
	if r.Work > outside.Seconds() {
		return fmt.Errorf("%.2f s of work within %v: %w", r.Work, outside, ErrImpossible)
	}
	expected := math.NaN()
	for _, d := range r.Devices {
		if len(d.Windows) == 0 {
			continue // it says itself that it measured nothing
		}
		if work := d.work(); work < o.Work.Seconds()*leastWork {
			return fmt.Errorf("device %d: %.2f s of %v: %w", d.Index, work, o.Work, ErrShort)
		}
		if math.IsNaN(expected) {
			expected = product.Expected(o.Nonce, o.Size)
		}
		if !(math.Abs(d.Product.Checksum-expected) <= product.Tolerance(o.Size)) {
			return fmt.Errorf("device %d: checksum %v instead of %v: %w", d.Index, d.Product.Checksum, expected, ErrProduct)
		}
	}
	return nil
}

// leastWork of an order: a window ends up to a tenth early rather than start a rest too short to time.
const leastWork = 0.9

// work is how long the device says it multiplied, in seconds.
func (d Device) work() float64 {
	sum := 0.0
	for _, w := range d.Windows {
		sum += w.Device
	}
	return sum
}
