package notices_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lowtide/events"
	"lowtide/functions/notices"
	"lowtide/shared/fn"
)

var now = time.Date(2026, 1, 1, 0, 0, 5, 0, time.UTC)

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

const machine = "i-0b662ef9931388ba0"

func taken(endsBy, action string) []events.Fact {
	return []events.Fact{events.InstanceInterrupted{
		Cloud: "aws", Account: "123456789012", ID: machine, EndsBy: at(endsBy), Action: action, Noticed: "eventbridge",
	}}
}

func risk(id string) []events.Fact {
	return []events.Fact{events.InstanceAtRisk{Cloud: "aws", Account: "123456789012", ID: id, Noticed: "eventbridge"}}
}

// event is an EventBridge document; more replaces or adds fields, and null removes one.
func event(kind, detail, more string) []byte {
	e := map[string]any{
		"version": "0", "id": "00000000-0000-4000-8000-000000000001", "detail-type": kind, "source": "aws.ec2", "account": "123456789012",
		"time": "2026-01-01T00:00:00Z", "region": "us-east-1", "resources": []string{"arn:aws:ec2:us-east-1b:instance/" + machine},
		"detail": json.RawMessage(detail),
	}
	if more != "" {
		if err := json.Unmarshal([]byte(more), &e); err != nil {
			panic(err)
		}
	}
	for k, v := range e {
		if v == nil {
			delete(e, k)
		}
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return b
}

func TestEachKindOfEventBridgeSaysWhatItMeans(t *testing.T) {
	const (
		spot    = "EC2 Spot Instance Interruption Warning"
		state   = "EC2 Instance State-change Notification"
		id      = `"instance-id":"` + machine + `"`
		block   = `{"capacity-reservation-id":"cr-0123456789abcdef0","end-date":"2026-01-01T00:40:00Z"}`
		retire  = `{"service":"EC2","eventTypeCategory":"scheduledChange","eventTypeCode":"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED","startTime":"Thu, 15 Jan 2026 15:10:09 GMT","affectedEntities":[{"entityValue":"` + machine + `"},{"entityValue":"vol-1"}]}`
		network = `{"service":"EC2","eventTypeCategory":"scheduledChange","eventTypeCode":"AWS_EC2_DEDICATED_HOST_NETWORK_MAINTENANCE_SCHEDULED","startTime":"Thu, 15 Jan 2026 15:10:09 GMT","affectedEntities":[{"entityValue":"` + machine + `"}]}`
	)
	reservation := []events.Fact{events.InstanceInterrupted{
		Cloud: "aws", Account: "123456789012", ID: "cr-0123456789abcdef0", EndsBy: at("2026-01-01T00:10:00Z"), Action: "terminate", Noticed: "eventbridge",
	}}
	for name, c := range map[string]struct {
		raw  []byte
		want []events.Fact
	}{
		"SpotEndsTwoMinutesAfterItWasSaid":   {event(spot, `{`+id+`,"instance-action":"terminate"}`, ""), taken("2026-01-01T00:02:00Z", "terminate")},
		"SpotStops":                          {event(spot, `{`+id+`,"instance-action":"stop"}`, ""), taken("2026-01-01T00:02:00Z", "stop")},
		"HibernationBeginsAtOnce":            {event(spot, `{`+id+`,"instance-action":"hibernate"}`, ""), taken("2026-01-01T00:00:00Z", "hibernate")},
		"WithoutATimeItWasSaidTenSecondsAgo": {event(spot, `{`+id+`,"instance-action":"terminate"}`, `{"time":""}`), taken("2026-01-01T00:01:55Z", "terminate")},
		"ATimeAheadOfOursIsNow":              {event(spot, `{`+id+`,"instance-action":"terminate"}`, `{"time":"2026-01-01T01:00:00Z"}`), taken("2026-01-01T00:02:05Z", "terminate")},
		"TheMachineIsInTheARN":               {event(spot, `{}`, ""), taken("2026-01-01T00:02:00Z", "terminate")},
		"UnknownFieldsAreLetPass":            {event(spot, `{`+id+`,"instance-action":"terminate","x":{"y":[1]}}`, `{"new":true}`), taken("2026-01-01T00:02:00Z", "terminate")},
		"AReservationNamesItsEnd": {event("EC2 Capacity Reservation Instance Interruption Warning",
			`{`+id+`,"instance-action":"terminate","instance-termination-time":"2026-01-01T00:01:30Z","azId":"use1-az1"}`,
			`{"resources":"arn:aws:ec2:us-east-1:123456789012:instance/`+machine+`"}`), taken("2026-01-01T00:01:30Z", "terminate")},
		"RebalanceIsAdvice":                   {event("EC2 Instance Rebalance Recommendation", `{`+id+`}`, ""), risk(machine)},
		"ShuttingDownIsNoWarning":             {event(state, `{`+id+`,"state":"shutting-down"}`, ""), taken("2026-01-01T00:00:00Z", notices.Ended)},
		"TerminatedIsNoWarning":               {event(state, `{`+id+`,"state":"terminated"}`, ""), taken("2026-01-01T00:00:00Z", notices.Ended)},
		"StoppingEndsARunToo":                 {event(state, `{`+id+`,"state":"stopping"}`, ""), taken("2026-01-01T00:00:00Z", notices.Ended)},
		"RunningSaysNothing":                  {event(state, `{`+id+`,"state":"running"}`, ""), nil},
		"ABlockEndsTenMinutesAfterTheWarning": {event("Capacity Block Expiration Warning", block, ""), reservation},
		"ABlockWithTheOtherName":              {event("Capacity Block Reservation Expiration Warning", block, ""), reservation},
		"ABlockWithUnderscores": {event("", block, `{"detail-type":null,"detail_type":"Capacity Block Expiration Warning","id":null,"region":null,
			"resources":["arn:aws:ec2:us-east-1:123456789012:capacity-reservation/cr-0123456789abcdef0"]}`), reservation},
		"ABlockDelivered":         {event("Capacity Block Delivered", block, ""), nil},
		"AReservationExpired":     {event("EC2 Capacity Reservation Expired", `{"capacity-reservation-id":"cr-1","state":"expired"}`, ""), risk("cr-1")},
		"AReservationActive":      {event("EC2 Capacity Reservation Active", `{"capacity-reservation-id":"cr-1","state":"active"}`, ""), nil},
		"RetirementHasItsTime":    {event("AWS Health Event", retire, `{"source":"aws.health"}`), taken("2026-01-15T15:10:09Z", "stop")},
		"NetworkWorkIsAdvice":     {event("AWS Health Event", network, `{"source":"aws.health"}`), risk(machine)},
		"ALifecycleHook":          {event("EC2 Instance-terminate Lifecycle Action", `{"EC2InstanceId":"`+machine+`","LifecycleTransition":"autoscaling:EC2_INSTANCE_TERMINATING"}`, `{"source":"aws.autoscaling","resources":[]}`), taken("2026-01-01T00:02:00Z", "terminate")},
		"AnAlarmIsNotOurs":        {event("CloudWatch Alarm State Change", `{"alarmName":"x"}`, ""), nil},
		"FulfilmentSaysNothing":   {event("EC2 Spot Instance Request Fulfillment", `{}`, ""), nil},
		"WrappedIntoAMessage":     {wrapped(event(spot, `{`+id+`,"instance-action":"terminate"}`, "")), taken("2026-01-01T00:02:00Z", "terminate")},
		"ATestMessage":            {[]byte(`{"Message":"{\"Event\":\"autoscaling:TEST_NOTIFICATION\"}"}`), nil},
		"MessagesInMessagesEnd":   {wrapped(wrapped([]byte(`{}`))), nil},
		"AnotherDocumentOfAWSs":   {[]byte(`{"Records":[]}`), nil},
		"ADocumentOfNobodyWeKnow": {[]byte(`{"hello":"world"}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := notices.Read(c.raw, now)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(got, c.want); d != "" {
				t.Errorf("got, want: %s", d)
			}
		})
	}
}

func wrapped(raw []byte) []byte {
	b, _ := json.Marshal(map[string]string{"Type": "Notification", "Message": string(raw)})
	return b
}

func TestWhatCannotBeReadIsADeadLetter(t *testing.T) {
	n := notices.New([]string{"f"}, notices.Options{Now: func() time.Time { return now }})
	for _, raw := range []string{
		"", "abcd", `{"detail-type":"EC2 Spot Instance Interruption Warning","detail":{"instance-id":"i-0`, `[1,2]`,
		`{"detail-type":"EC2 Spot Instance Interruption Warning","detail":{}}`, // whose?
		`{"detail-type":"EC2 Spot Instance Interruption Warning","detail":"soon"}`,
		`{"notif_type":"outbid","subject":"Your instance has been outbid"}`,
		`{"x":"` + strings.Repeat("y", 2<<20) + `"}`,
	} {
		if said, err := n.Direct(t.Context(), []byte(raw)); !errors.Is(err, fn.ErrDead) || len(said) > 0 {
			t.Errorf("%.60s: %v, %v; want a dead letter", raw, said, err)
		}
	}
}

func TestEveryFleetIsToldUnderOurNameOfTheAccountAndARepeatIsTheSameFact(t *testing.T) {
	clock := now
	n := notices.New([]string{"a", "b"}, notices.Options{
		Now: func() time.Time { return clock }, Accounts: map[string]string{"aws/123456789012": "main"},
	})
	raw := event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-1","instance-action":"terminate"}`, "")
	first, err := n.Direct(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(30 * time.Second)
	again, err := n.Direct(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != 2 || first[0].Fleet != "a" || first[1].Fleet != "b" {
		t.Fatalf("said %v, want one fact a fleet", first)
	}
	for i := range first {
		if f := first[i].Data.(events.InstanceInterrupted); f.Account != "main" {
			t.Errorf("account %q, want our name of it", f.Account)
		}
		if first[i].ID != again[i].ID {
			t.Errorf("said again under another id: %s, %s", first[i].ID, again[i].ID)
		}
	}
}

func TestWhatAWebhookTookInIsReadFromTheStream(t *testing.T) {
	n := notices.New([]string{"f"}, notices.Options{Now: func() time.Time { return now }})
	raw := []byte(`{"event_id":"e","user_id":1,"notif_type":"outbid","subject":"Your Interruptible Instance #1234568 Has Been Outbid","timestamp":1767225600.5}`)
	said, err := n.Function().Handle(context.Background(), []fn.Delivery{{
		Event: events.New("f", "notices", now, events.NoticeReceived{Cloud: "vast", Body: raw}), At: now,
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := events.InstanceInterrupted{
		Cloud: "vast", ID: "1234568", EndsBy: at("2026-01-01T00:00:00.5Z"), Action: "stop", Noticed: "webhook",
	}
	if len(said) != 1 || cmp.Diff(said[0].Data, events.Fact(want)) != "" {
		t.Errorf("said %+v, want %+v", said, want)
	}
}

// samples is ../shared/samples beside the repository.
func samples(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("LOWTIDE_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "samples")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no samples: %v", err)
		}
		t.Skipf("no samples of the clouds' events: %v", err)
	}
	return dir
}

func TestEverySampleEventDecodes(t *testing.T) {
	dir := samples(t)
	want := map[string]int{ // facts in it
		"aws-event-spot-interruption-warning.json": 1, "aws-event-rebalance-recommendation.json": 1,
		"alibaba-event-PreemptibleInstanceInterruption.json": 1, "azure-scheduledevents-preempt.json": 1,
		"volc-DescribeSystemEvents-spot.json": 1, "vast-webhook-outbid.json": 1, "vast-webhook-low_credit.json": 0,
		"vast-notifications-inbox.json": 2,
	}
	for _, pattern := range []string{"*-event-*", "*scheduledevents*", "*SystemEvents*", "*webhook*", "*notifications*"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			facts, err := notices.Read(raw, now)
			n, known := want[filepath.Base(file)]
			if err != nil || !known || len(facts) != n {
				t.Errorf("%s: %v, %v; want %d facts (known: %v)", filepath.Base(file), facts, err, n, known)
			}
			for _, f := range facts {
				if i, ok := f.(events.InstanceInterrupted); ok && (i.ID == "" || i.EndsBy.IsZero() || i.Cloud == "") {
					t.Errorf("%s: %+v lacks machine, end or cloud", filepath.Base(file), i)
				}
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(event("EC2 Spot Instance Interruption Warning", `{"instance-id":"i-1","instance-action":"stop"}`, ""))
	f.Add([]byte(`{"DocumentIncarnation":1,"Events":[{"EventType":"Preempt","Resources":["vm"],"NotBefore":""}]}`))
	f.Add([]byte(`{"notifications":[{"notif_type":"outbid","created_at":1e300,"associated_id":{"instance_id":7}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		facts, err := notices.Read(raw, now)
		if err != nil && len(facts) > 0 {
			t.Errorf("both facts and %v", err)
		}
		for _, fact := range facts {
			if _, err := events.Encode(events.New("f", "notices", now, fact)); err != nil {
				t.Error(err)
			}
		}
	})
}
