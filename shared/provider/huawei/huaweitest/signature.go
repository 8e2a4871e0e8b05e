package huaweitest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"lowtide/shared/provider/fake"
)

var authorization = regexp.MustCompile(`^SDK-HMAC-SHA256 Access=([^,]+), SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$`)

// verify checks a request's signature by the vendor's description.
func verify(r *http.Request, body []byte, now time.Time) error {
	no := fail{http.StatusUnauthorized, "APIGW.0301"}
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil || m[1] != KeyID {
		return no
	}
	signed := strings.Split(m[2], ";")
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Sdk-Date"))
	if err != nil || at.Sub(now).Abs() > 15*time.Minute || !slices.IsSorted(signed) || !slices.Contains(signed, "host") || !slices.Contains(signed, "x-sdk-date") {
		return no
	}
	var parts []string
	for p := range strings.SplitSeq(r.URL.Path, "/") {
		parts = append(parts, fake.Escape(p))
	}
	path := strings.Join(parts, "/")
	if !strings.HasSuffix(path, "/") {
		path += "/"
	}
	lines := []string{r.Method, path, fake.Canonical(r.URL.Query())}
	for _, n := range signed {
		v := r.Header.Get(n)
		if n == "host" {
			v = r.Host
		}
		lines = append(lines, n+":"+strings.TrimSpace(v))
	}
	lines = append(lines, "", strings.Join(signed, ";"), fake.Digest(string(body)))
	mac := hmac.New(sha256.New, []byte(Secret))
	mac.Write([]byte("SDK-HMAC-SHA256\n" + r.Header.Get("X-Sdk-Date") + "\n" + fake.Digest(strings.Join(lines, "\n"))))
	if hex.EncodeToString(mac.Sum(nil)) != m[3] {
		return no
	}
	return nil
}
