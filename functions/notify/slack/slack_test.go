package slack_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slack-go/slack/slacktest"

	"lowtide/functions/notify"
	"lowtide/functions/notify/slack"
)

func message(version int, title string) notify.Message {
	return notify.Message{
		ID: "f/12", Number: 12, Version: version, Kind: "interrupted", Severity: notify.Warning, Title: title, Lines: []string{"<!channel> & co"},
		Fleet: "f", Opened: time.Now(), Changed: time.Now(), Language: notify.English,
	}
}

func TestSlackGosOwnStandInTakesOurMessages(t *testing.T) {
	s := slacktest.NewTestServer()
	s.Start()
	defer s.Stop()
	ch, err := slack.New(slack.Settings{Token: "xoxb-test", Channel: "C123456789", API: s.GetAPIURL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := ch.Send(t.Context(), message(1, "#12 train loses its machine"), "")
	if err != nil || ref == "" {
		t.Fatalf("got %q, %v", ref, err)
	}
	var sent string
	for end := time.Now().Add(10 * time.Second); sent == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // it notes messages after it has answered
		sent = strings.Join(s.GetSeenOutboundMessages(), "\n")
	}
	if !strings.Contains(sent, "train loses its machine") || strings.Contains(sent, `\u003c!channel`) {
		t.Errorf("it saw %s", sent)
	}
}

// A live send: LOWTIDE_LIVE_SLACK_TOKEN and LOWTIDE_LIVE_SLACK_CHANNEL name a channel for tests.
func TestALiveMessageIsPostedAndChanged(t *testing.T) {
	token, channel := os.Getenv("LOWTIDE_LIVE_SLACK_TOKEN"), os.Getenv("LOWTIDE_LIVE_SLACK_CHANNEL")
	if token == "" || channel == "" {
		t.Skip("LOWTIDE_LIVE_SLACK_TOKEN and LOWTIDE_LIVE_SLACK_CHANNEL name no channel")
	}
	ch, err := slack.New(slack.Settings{Token: token, Channel: channel}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := ch.Send(t.Context(), message(1, "#12 test of lowtide"), "")
	if err == nil {
		_, err = ch.Send(t.Context(), message(2, "#12 Over: test of lowtide"), ref)
	}
	if err != nil {
		t.Error(err)
	}
}
