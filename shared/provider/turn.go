package provider

import (
	"context"
	"fmt"
)

// Turn lets one caller after the other do what must not be done twice at once, such as to look for a label and then to
// buy. Unlike a mutex it may be held over the network and the clock: whoever waits stops when its context ends.
type Turn chan struct{}

// NewTurn makes a Turn that is free.
func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the turn; done gives it back. A context that ends first is ErrThrottled: nothing was asked.
func (t Turn) Take(ctx context.Context) (done func(), err error) {
	if ctx.Err() == nil {
		select {
		case t <- struct{}{}:
			return func() { <-t }, nil
		case <-ctx.Done():
		}
	}
	return nil, fmt.Errorf("%w: waiting for another purchase: %w", ErrThrottled, ctx.Err())
}
