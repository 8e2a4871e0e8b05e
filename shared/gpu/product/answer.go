package product

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The reasons for which an answer is not one to its order. An older answer under a new nonce shows as ErrProduct.
var (
	ErrSmall      = errors.New("multiplied smaller matrices than ordered")
	ErrImpossible = errors.New("took longer by its own account than the order was open")
	ErrShort      = errors.New("worked less than ordered")
	ErrProduct    = errors.New("the product does not follow from the nonce")
)

// Order is what whoever asked for a benchmark remembers of it.
type Order struct {
	Nonce string
	Size  int           // least edge of the matrices
	Work  time.Duration // the least that each device must have multiplied
}

// Part is one device's part of an answer.
type Part struct {
	Work     time.Duration // that the device says it multiplied
	Checksum float64       // of its product
}

// Check holds an answer against its order and the time that passed outside the machine, from giving the order to hearing
// the answer. It costs size² on one core (0.9 s at 8192) and needs no device.
//
// It refuses answers to other orders and ones that came too fast for the work they claim. It cannot refuse a host that
// replaces the runner itself and computes the checksum from the nonce: what such a host cannot do is finish a real
// workload at the speed it claims, which is measured later.
func (o Order) Check(size int, parts []Part, outside time.Duration) error {
	if size < o.Size || size > mostSize {
		return fmt.Errorf("%d instead of %d: %w", size, o.Size, ErrSmall)
	}
	for i, p := range parts {
		switch {
		case p.Work > outside:
			return fmt.Errorf("device %d: %s of work within %s: %w", i, p.Work, outside, ErrImpossible)
		case float64(p.Work) < leastWork*float64(o.Work):
			return fmt.Errorf("device %d: %s of %s: %w", i, p.Work, o.Work, ErrShort)
		}
	}
	if len(parts) == 0 {
		return nil
	}
	expected := Expected(o.Nonce, size)
	for i, p := range parts {
		if !(math.Abs(p.Checksum-expected) <= Tolerance(size)) { // a checksum that is not a number is wrong too
			return fmt.Errorf("device %d: checksum %g instead of %g: %w", i, p.Checksum, expected, ErrProduct)
		}
	}
	return nil
}

const (
	// leastWork of an order: a window ends up to a tenth early rather than start a rest too short to time.
	leastWork = 0.9
	// mostSize bounds what an answer can make its judge compute.
	mostSize = 16384
)
