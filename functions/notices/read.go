package notices

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"lowtide/events"
)

// maxBytes is the largest document; EventBridge's own limit is 256 KiB, and 1 MiB for some sources.
const maxBytes = 1 << 20

// Read finds the warnings in one document of any cloud that it knows, told apart by their shape. now bounds what a
// sender's clock may claim. No facts and no error: it is no warning. An error: it cannot be read at all.
func Read(raw []byte, now time.Time) ([]events.Fact, error) {
	if len(raw) > maxBytes {
		return nil, fmt.Errorf("notice of %d bytes, the limit is %d", len(raw), maxBytes)
	}
	var s shape
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("notice: %w", err)
	}
	switch {
	case s.kind() != "":
		return aws(raw, now)
	case s.NotifType != "":
		return vastHook(raw)
	case s.Message != "": // SNS and Auto Scaling wrap the document into a string
		var inner shape
		if json.Unmarshal([]byte(s.Message), &inner) != nil || inner.Message != "" {
			return nil, nil
		}
		return Read([]byte(s.Message), now)
	case s.Product == "ECS" && s.Content != nil:
		return alibaba(raw, now)
	case s.Incarnation != nil:
		return azure(raw)
	case s.Result.SystemEvents != nil:
		return volcengine(raw, now)
	case s.Notifications != nil:
		return vastInbox(raw)
	}
	return nil, nil
}

// shape is what tells documents apart.
type shape struct {
	DetailType  string          `json:"detail-type"`
	DetailSnake string          `json:"detail_type"`
	Message     text            `json:"Message"`
	Product     text            `json:"product"`
	Content     json.RawMessage `json:"content"`
	Incarnation json.RawMessage `json:"DocumentIncarnation"`
	Result      struct {
		SystemEvents json.RawMessage `json:"SystemEvents"`
	} `json:"Result"`
	NotifType     text            `json:"notif_type"`
	Notifications json.RawMessage `json:"notifications"`
}

func (s shape) kind() string {
	if s.DetailType != "" {
		return s.DetailType
	}
	return s.DetailSnake
}

// text is a string where something else may stand, which is then as good as nothing.
type text string

// UnmarshalJSON never fails: a document must not be lost for a field that we may not need.
func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	_ = json.Unmarshal(b, &s)
	*t = text(s)
	return nil
}

// said is when a warning was said: what stands in it, but never later than now; where nothing readable stands, a little
// ago, since it was said before it arrived.
func said(at string, now time.Time, layouts ...string) time.Time {
	for _, layout := range append(layouts, time.RFC3339) {
		if t, err := time.Parse(layout, at); err == nil {
			if t.After(now) {
				return now
			}
			return t.UTC()
		}
	}
	return now.Add(-unknownTime)
}

// unknownTime is how long ago a warning without a time is taken to have been said.
const unknownTime = 10 * time.Second

var (
	errNoInstance = errors.New("it names no machine")
	errNoTime     = errors.New("its time is none")
)
