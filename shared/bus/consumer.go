package bus

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// margin is how much longer than a host's longest silence the server must wait before it delivers again.
const margin = 3 * time.Second

// CheckConsumer refuses a consumer, as read back from the server, that would deliver a message again while its handler
// still works, or only after an hour. silent is the longest that a host goes without an ack or a sign of life.
// A wait given in the wrong unit was seen to make every message come for ever.
func CheckConsumer(info *jetstream.ConsumerInfo, silent time.Duration) error {
	wait := info.Config.AckWait
	if len(info.Config.BackOff) > 0 {
		wait = info.Config.BackOff[0] // it takes the place of AckWait
	}
	switch {
	case info.Config.AckPolicy != jetstream.AckExplicitPolicy:
		return fmt.Errorf("consumer %s: acknowledges %s, want explicit", info.Name, info.Config.AckPolicy)
	case wait < silent+margin:
		return fmt.Errorf("consumer %s: ack_wait is %v, but a message may be silent for %v; set it to %v at least", info.Name, wait, silent, silent+margin)
	case wait > time.Hour:
		return fmt.Errorf("consumer %s: ack_wait is %v: a message of a dead host would wait so long", info.Name, wait)
	case info.Config.MaxDeliver > 0:
		return fmt.Errorf("consumer %s: max_deliver is %d: the server would give messages up without a dead letter", info.Name, info.Config.MaxDeliver)
	case info.Config.InactiveThreshold > 0 && info.Config.InactiveThreshold < 24*time.Hour:
		return fmt.Errorf("consumer %s: deleted when idle for %v, and its position with it", info.Name, info.Config.InactiveThreshold)
	}
	return nil
}
