package notices

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"lowtide/events"
)

// What the other clouds promise between the warning and the end.
const (
	alibabaNotice = 5 * time.Minute
	volcNotice    = 5 * time.Minute
)

// alibaba reads an event of CloudMonitor or EventBridge. Its time is not RFC 3339: 20190409T121826.922+0800.
func alibaba(raw []byte, now time.Time) ([]events.Fact, error) {
	var e struct {
		Name    text `json:"name"`
		User    text `json:"userId"`
		Time    text `json:"eventTime"`
		Content struct {
			Instance text `json:"instanceId"`
			Action   text `json:"action"`
		} `json:"content"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, fmt.Errorf("alibaba: %w", err)
	}
	if e.Name != "Instance:PreemptibleInstanceInterruption" {
		return nil, nil
	}
	w := warning{"alibaba", string(e.User), string(e.Content.Instance), "eventbridge"}
	return w.ends(said(string(e.Time), now, "20060102T150405.000-0700").Add(alibabaNotice), action(string(e.Content.Action)))
}

// action puts a cloud's word into ours.
func action(word string) string {
	switch strings.ToLower(word) {
	case "stop", "stopped", "deallocate":
		return "stop"
	case "hibernate":
		return "hibernate"
	}
	return "terminate"
}

// azure reads a document of Scheduled Events. It comes from one machine's metadata, and names machines, not their ids.
// An empty NotBefore means that it has begun.
func azure(raw []byte) ([]events.Fact, error) {
	var doc struct {
		Events []struct {
			Type      text     `json:"EventType"`
			Resources []string `json:"Resources"`
			NotBefore text     `json:"NotBefore"`
		} `json:"Events"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("azure: %w", err)
	}
	var out []events.Fact
	for _, e := range doc.Events {
		what := map[text]string{"Preempt": "terminate", "Terminate": "terminate", "Redeploy": "stop", "Reboot": "stop"}[e.Type]
		if what == "" {
			continue
		}
		ends := time.Unix(0, 0).UTC() // begun: there is no time left
		if t, err := time.Parse(time.RFC1123, string(e.NotBefore)); err == nil {
			ends = t.UTC()
		}
		for _, name := range e.Resources {
			facts, err := warning{"azure", "", name, "metadata"}.ends(ends, what)
			if err != nil {
				return nil, err
			}
			out = append(out, facts...)
		}
	}
	return out, nil
}

// volcengine reads an answer of DescribeSystemEvents.
func volcengine(raw []byte, now time.Time) ([]events.Fact, error) {
	var doc struct {
		Result struct {
			Events []struct {
				Type    text `json:"Type"`
				Status  text `json:"Status"`
				ID      text `json:"ResourceId"`
				Created text `json:"CreatedAt"`
				Starts  text `json:"OperatedStartAt"`
			} `json:"SystemEvents"`
		} `json:"Result"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("volcengine: %w", err)
	}
	var out []events.Fact
	for _, e := range doc.Result.Events {
		if !strings.HasPrefix(string(e.Type), "SpotInstanceInterruption.") || e.Status != "Scheduled" {
			continue
		}
		ends := said(string(e.Created), now).Add(volcNotice)
		if t, err := time.Parse(time.RFC3339, string(e.Starts)); err == nil {
			ends = t.UTC()
		}
		facts, err := warning{"volcengine", "", string(e.ID), "listing"}.ends(ends, action(strings.TrimPrefix(string(e.Type), "SpotInstanceInterruption.")))
		if err != nil {
			return nil, err
		}
		out = append(out, facts...)
	}
	return out, nil
}

// outbidID is the machine in the subject of Vast's webhook, which has no field for it.
var outbidID = regexp.MustCompile(`#(\d+)\b`)

// vastHook reads one delivery of Vast's webhook. There is no notice: an outbid machine is being stopped now.
func vastHook(raw []byte) ([]events.Fact, error) {
	var e struct {
		Type    text    `json:"notif_type"`
		Subject text    `json:"subject"`
		Time    float64 `json:"timestamp"`
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return nil, fmt.Errorf("vast: %w", err)
	}
	if e.Type != "outbid" {
		return nil, nil
	}
	id := outbidID.FindStringSubmatch(string(e.Subject))
	if id == nil {
		return nil, fmt.Errorf("vast: outbid: %w in its subject", errNoInstance)
	}
	return warning{"vast", "", id[1], "webhook"}.ends(seconds(e.Time), "stop")
}

// vastInbox reads the notifications as they are polled.
func vastInbox(raw []byte) ([]events.Fact, error) {
	var doc struct {
		Notifications []struct {
			Type  text    `json:"notif_type"`
			Time  float64 `json:"created_at"`
			About struct {
				Instance json.Number `json:"instance_id"`
			} `json:"associated_id"`
		} `json:"notifications"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("vast: %w", err)
	}
	var out []events.Fact
	for _, n := range doc.Notifications {
		if n.Type != "outbid" || n.About.Instance == "" {
			continue // others have no machine; a listing finds theirs
		}
		facts, err := warning{"vast", "", n.About.Instance.String(), "listing"}.ends(seconds(n.Time), "stop")
		if err != nil {
			return nil, err
		}
		out = append(out, facts...)
	}
	return out, nil
}

func seconds(s float64) time.Time { return time.UnixMilli(int64(s * 1000)).UTC() }
