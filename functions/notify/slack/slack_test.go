package slack_test

import (
	"io"
	"net/http"
	"net/url"
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
	saw := &tap{}
	ch, err := slack.New(slack.Settings{Token: "xoxb-test", Channel: "C123456789", API: s.GetAPIURL()}, &http.Client{Transport: saw})
	if err != nil {
		t.Fatal(err)
	}
	// It decodes our blocks into slack-go's own types, or answers with an error.
	ref, err := ch.Send(t.Context(), message(1, "#12 train loses its machine"), "")
	if err != nil || ref == "" {
		t.Fatalf("got %q, %v", ref, err)
	}
	if got := saw.form.Get("blocks"); !strings.Contains(got, "train loses its machine") || !strings.Contains(got, `\u0026lt;!channel`) {
		t.Errorf("blocks %s", got)
	}
}

// tap notes the form that passes.
type tap struct{ form url.Values }

func (s *tap) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	s.form, _ = url.ParseQuery(string(body))
	out := r.Clone(r.Context())
	out.Body = io.NopCloser(strings.NewReader(string(body)))
	return http.DefaultTransport.RoundTrip(out)
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
