package notices_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lowtide/events"
	"lowtide/functions/notices"
)

func TestAWebhookIsTakenInOnlyAsSigned(t *testing.T) {
	const secret, other = "0123456789abcdef-vast", "0123456789abcdef-alibaba"
	door, err := notices.NewDoor("f", "vast "+secret+"\n\nalibaba "+other+"\n", func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(`{"notif_type":"outbid","message":"a \u003c b"}`)
	sign := func(key string, at time.Time, body []byte) map[string]string {
		stamp := fmt.Sprint(at.Unix())
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte(stamp + "." + string(body)))
		return map[string]string{"x-vast-timestamp": stamp, "x-vast-signature-256": "sha256=" + hex.EncodeToString(mac.Sum(nil))}
	}
	for name, c := range map[string]struct {
		cloud  string
		header map[string]string
		body   []byte
		want   error
	}{
		"Vast":                {"vast", sign(secret, now, body), body, nil},
		"VastWithAnotherKey":  {"vast", sign(other, now, body), body, notices.ErrUnsigned},
		"VastOfAnHourAgo":     {"vast", sign(secret, now.Add(-time.Hour), body), body, notices.ErrUnsigned},
		"VastWithoutATime":    {"vast", map[string]string{"x-vast-signature-256": "sha256="}, body, notices.ErrUnsigned},
		"VastWithOtherBytes":  {"vast", sign(secret, now, body), append([]byte(" "), body...), notices.ErrUnsigned},
		"ABearer":             {"alibaba", map[string]string{"authorization": "Bearer " + other}, body, nil},
		"AnotherCloudsBearer": {"alibaba", map[string]string{"authorization": "Bearer " + secret}, body, notices.ErrUnsigned},
		"NoBearer":            {"alibaba", nil, body, notices.ErrUnsigned},
		"NobodysDoor":         {"azure", nil, body, notices.ErrNoDoor},
		"TooLarge":            {"alibaba", map[string]string{"authorization": "Bearer " + other}, []byte(strings.Repeat("x", 200<<10)), notices.ErrTooLarge},
	} {
		said, err := door.Take(c.cloud, func(h string) string { return c.header[h] }, c.body)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if c.want != nil {
			if len(said) > 0 {
				t.Errorf("%s: said %v", name, said)
			}
			continue
		}
		if f, ok := said[0].Data.(events.NoticeReceived); !ok || f.Cloud != c.cloud || string(f.Body) != string(c.body) {
			t.Errorf("%s: said %+v, want the bytes as they came", name, said)
		}
	}
	if _, err := notices.NewDoor("f", "vast short", nil); err == nil {
		t.Error("a short secret was taken")
	}
}
