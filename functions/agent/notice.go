package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// readNotice reads what a cloud's metadata service says of this machine's end. false: nothing is planned.
//
//	AWS, fake    {"action", "time"}                       RFC 3339
//	Huawei       {"action", "timestamp"}                  "2023-06-01 09:15:00", of an unstated zone
//	Azure        {"Events": [{"EventType", "NotBefore"}]} RFC 1123, empty once it has begun; names machines, others' too
//	Alibaba, Volcano Engine                               a bare time in RFC 3339
//	Tencent      a bare "2018-08-18 12:05:33"             of China's zone
//
// self is the name by which the cloud knows this machine, now the local time: what has begun ends within moments.
func readNotice(body []byte, self string, now time.Time) (Notice, bool, error) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return Notice{}, false, nil
	}
	if body[0] != '{' {
		return bare(string(body))
	}
	var doc struct {
		Notice
		Timestamp string           `json:"timestamp"`
		Events    []scheduledEvent `json:"Events"`
		Document  *json.Number     `json:"DocumentIncarnation"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return Notice{}, false, err
	}
	switch {
	case doc.Document != nil:
		n, found := scheduled(doc.Events, self, now)
		return n, found, nil
	case doc.Timestamp != "":
		at, err := eitherZone(doc.Timestamp, now)
		return Notice{Action: doc.Action, Time: at}, err == nil, err
	case doc.Time.IsZero():
		return Notice{}, false, errors.New("a notice without a time")
	}
	return doc.Notice, true, nil
}

const wallTime = "2006-01-02 15:04:05"

// china is the zone of clouds that state none.
var china = time.FixedZone("UTC+8", 8*3600)

// bare reads a time and nothing else: the machine is deleted then.
func bare(s string) (Notice, bool, error) {
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		at, err = time.ParseInLocation(wallTime, s, china)
	}
	if err != nil {
		return Notice{}, false, errors.New("neither a notice nor a time")
	}
	return Notice{Action: "terminate", Time: at.UTC()}, true, nil
}

// eitherZone reads a time that is of UTC or of China's zone: the earlier that is not over, since a notice is of minutes.
func eitherZone(s string, now time.Time) (time.Time, error) {
	early, err := time.ParseInLocation(wallTime, s, china)
	if err != nil {
		return time.Time{}, errors.New("a notice whose time cannot be read")
	}
	if late := early.Add(8 * time.Hour); early.Before(now.Add(-time.Minute)) && !late.Before(now.Add(-time.Minute)) {
		return late.UTC(), nil
	}
	return early.UTC(), nil
}

type scheduledEvent struct {
	Type      string   `json:"EventType"`
	Resources []string `json:"Resources"`
	NotBefore string   `json:"NotBefore"`
}

// moments is how long a machine has at most whose end has begun.
const moments = 15 * time.Second

// scheduled is the first end of this machine among the events of its group. Without a name every event counts.
func scheduled(all []scheduledEvent, self string, now time.Time) (n Notice, found bool) {
	for _, e := range all {
		action := map[string]string{"Preempt": "terminate", "Terminate": "terminate", "Redeploy": "stop", "Reboot": "stop"}[e.Type]
		if action == "" || self != "" && !slices.ContainsFunc(e.Resources, func(r string) bool { return strings.EqualFold(r, self) }) {
			continue
		}
		at, err := time.Parse(time.RFC1123, e.NotBefore)
		if err != nil { // it has begun. The same until it is over, or each look would be a notice of its own.
			at = now.Truncate(moments).Add(moments)
		}
		if !found || at.Before(n.Time) {
			n, found = Notice{Action: action, Time: at.UTC()}, true
		}
	}
	return n, found
}
