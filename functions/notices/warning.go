package notices

import (
	"time"

	"lowtide/events"
)

// Ended is the action of a machine that is already going, whoever ended it: no warning, and no interruption of a spot
// market's.
const Ended = events.ActionEnded

// warning is what the documents have in common.
type warning struct {
	cloud, account, id, noticed string
}

func (w warning) ends(by time.Time, action string) ([]events.Fact, error) {
	if w.id == "" {
		return nil, errNoInstance
	}
	if y := by.Year(); y < 1970 || y > 9000 {
		return nil, errNoTime
	}
	return []events.Fact{events.InstanceInterrupted{
		Cloud: w.cloud, Account: w.account, ID: w.id, EndsBy: by, Action: action, Noticed: w.noticed,
	}}, nil
}

func (w warning) risk() ([]events.Fact, error) {
	if w.id == "" {
		return nil, errNoInstance
	}
	return []events.Fact{events.InstanceAtRisk{Cloud: w.cloud, Account: w.account, ID: w.id, Noticed: w.noticed}}, nil
}
