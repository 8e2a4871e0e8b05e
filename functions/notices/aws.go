package notices

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"lowtide/events"
)

// What AWS promises. Its warnings do not say when the machine ends, with the exceptions below; see "Spot Instance
// interruption notices" and "Monitor Capacity Blocks" in the EC2 user guide.
const (
	awsNotice = 2 * time.Minute
	// A Capacity Block's machines begin to end 30 minutes before its end date, 10 minutes after the warning.
	blockNotice = 10 * time.Minute
)

// envelope is an EventBridge event as it arrives. Nothing but broken JSON makes it fail: of the documented events one
// has a bare string for the list of resources, and one has underscores in its keys, no id and no region.
type envelope struct {
	Kind      string          `json:"detail-type"`
	KindSnake string          `json:"detail_type"`
	Account   text            `json:"account"`
	Time      text            `json:"time"`
	Resources json.RawMessage `json:"resources"`
	Detail    json.RawMessage `json:"detail"`
}

type awsDetail struct {
	Instance    text `json:"instance-id"`
	Action      text `json:"instance-action"`
	EndsAt      text `json:"instance-termination-time"` // reservations that were taken back
	State       text `json:"state"`
	Reservation text `json:"capacity-reservation-id"`
	// Auto Scaling
	Scaled     text `json:"EC2InstanceId"`
	Transition text `json:"LifecycleTransition"`
	// Health
	Category text `json:"eventTypeCategory"`
	Code     text `json:"eventTypeCode"`
	Service  text `json:"service"`
	Start    text `json:"startTime"`
	Affected []struct {
		Entity text `json:"entityValue"`
	} `json:"affectedEntities"`
}

func aws(raw []byte, now time.Time) ([]events.Fact, error) {
	var e envelope
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, fmt.Errorf("eventbridge: %w", err)
	}
	kind := cmp.Or(e.Kind, e.KindSnake)
	var d awsDetail
	if len(e.Detail) > 0 {
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			return nil, fmt.Errorf("eventbridge: %s: %w", kind, err)
		}
	}
	at := said(string(e.Time), now)
	w := warning{cloud: "aws", account: string(e.Account), id: cmp.Or(string(d.Instance), string(d.Scaled), arnOf(e.Resources, ":instance/")), noticed: "eventbridge"}
	switch {
	case kind == "EC2 Spot Instance Interruption Warning", kind == "EC2 Capacity Reservation Instance Interruption Warning":
		ends := at.Add(awsNotice)
		if d.Action == "hibernate" {
			ends = at // it begins at once
		}
		if exact, err := time.Parse(time.RFC3339, string(d.EndsAt)); err == nil {
			ends = exact.UTC()
		}
		return w.ends(ends, cmp.Or(string(d.Action), "terminate"))
	case kind == "EC2 Instance Rebalance Recommendation":
		return w.risk()
	case kind == "EC2 Instance State-change Notification":
		switch d.State {
		case "shutting-down", "terminated", "stopping", "stopped":
			return w.ends(at, Ended)
		}
		return nil, nil
	case kind == "EC2 Instance-terminate Lifecycle Action":
		return w.ends(at.Add(awsNotice), "terminate")
	case strings.HasPrefix(kind, "Capacity Block") && strings.HasSuffix(kind, "Expiration Warning"):
		w.id = cmp.Or(string(d.Reservation), arnOf(e.Resources, ":capacity-reservation/"))
		return w.ends(at.Add(blockNotice), "terminate")
	case strings.HasPrefix(kind, "EC2 Capacity Reservation "):
		switch d.State {
		case "expired", "cancelled", "failed", "unsupported", "delayed":
			w.id = cmp.Or(string(d.Reservation), arnOf(e.Resources, ":capacity-reservation/"))
			return w.risk()
		}
		return nil, nil
	case kind == "AWS Health Event" && d.Service == "EC2" && d.Category == "scheduledChange":
		return health(w, d)
	}
	return nil, nil
}

// health reads a scheduled change: one event may name several machines, and its times are RFC 1123. What ends a
// machine, or a run on it, has a time; other maintenance is advice.
func health(w warning, d awsDetail) ([]events.Fact, error) {
	start, err := time.Parse(time.RFC1123, string(d.Start))
	final := err == nil && containsAny(string(d.Code), "RETIREMENT", "TERMINAT", "STOP", "REBOOT")
	var out []events.Fact
	for _, a := range d.Affected {
		if !strings.HasPrefix(string(a.Entity), "i-") {
			continue
		}
		w.id = string(a.Entity)
		facts, err := w.risk()
		if final {
			facts, err = w.ends(start.UTC(), "stop")
		}
		if err != nil {
			return nil, err
		}
		out = append(out, facts...)
	}
	return out, nil
}

func containsAny(s string, words ...string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

// arnOf takes what follows mark in the first ARN that has it, whatever stands where the region should be.
func arnOf(raw json.RawMessage, mark string) string {
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		var one string
		if json.Unmarshal(raw, &one) != nil {
			return ""
		}
		many = []string{one}
	}
	for _, arn := range many {
		if _, id, ok := strings.Cut(arn, mark); ok {
			return id
		}
	}
	return ""
}
