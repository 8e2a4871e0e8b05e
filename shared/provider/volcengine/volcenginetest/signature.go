package volcenginetest

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

var authorization = regexp.MustCompile(`^HMAC-SHA256 Credential=([^/]+)/(\d{8})/([a-z0-9-]+)/(ecs|billing)/request, SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$`)

// verify checks a request's signature by the vendor's description, and tells the region that it is for.
func verify(r *http.Request, body []byte, now time.Time) (region string, err error) {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return "", fail{http.StatusUnauthorized, "InvalidAuthorization"}
	}
	id, day, region, service, signed, signature := m[1], m[2], m[3], m[4], strings.Split(m[5], ";"), m[6]
	stamp := r.Header.Get("X-Date")
	at, err := time.Parse("20060102T150405Z", stamp)
	switch {
	case id != KeyID:
		return "", fail{http.StatusUnauthorized, "InvalidAccessKey"}
	case err != nil, at.Sub(now).Abs() > 15*time.Minute:
		return "", fail{http.StatusUnauthorized, "InvalidTimestamp"}
	case at.Format("20060102") != day, r.Header.Get("X-Content-Sha256") != fake.Digest(string(body)), !slices.IsSorted(signed):
		return "", fail{http.StatusUnauthorized, "SignatureDoesNotMatch"}
	}
	for name := range r.Header {
		n := strings.ToLower(name)
		if (strings.HasPrefix(n, "x-") || n == "content-type") && !slices.Contains(signed, n) {
			return "", fail{http.StatusUnauthorized, "SignatureDoesNotMatch"}
		}
	}
	lines := []string{r.Method, "/", fake.Canonical(r.URL.Query())}
	for _, n := range signed {
		v := r.Header.Get(n)
		if n == "host" {
			v = r.Host
		}
		lines = append(lines, n+":"+strings.TrimSpace(v))
	}
	lines = append(lines, "", strings.Join(signed, ";"), fake.Digest(string(body)))
	text := strings.Join([]string{"HMAC-SHA256", stamp, strings.Join([]string{day, region, service, "request"}, "/"), fake.Digest(strings.Join(lines, "\n"))}, "\n")
	key := []byte(Secret)
	for _, part := range []string{day, region, service, "request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	if !slices.Contains(signed, "host") || hex.EncodeToString(key) != signature {
		return "", fail{http.StatusUnauthorized, "SignatureDoesNotMatch"}
	}
	return region, nil
}
