package fn

import (
	"errors"

	"lowtide/events"
)

// Sayable parts what can be said from what never can be: one event too large, or with a time that has no wire form, must
// not keep the others of its call from being heard. The error is nil, or joins one for each that is left out.
func Sayable(said []events.Event) ([]events.Event, error) {
	var good []events.Event
	var bad []error
	for _, e := range said {
		if _, err := events.Encode(e); err != nil {
			bad = append(bad, err)
		} else {
			good = append(good, e)
		}
	}
	return good, errors.Join(bad...)
}
