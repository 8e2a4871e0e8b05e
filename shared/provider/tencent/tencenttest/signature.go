package tencenttest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

var authorization = regexp.MustCompile(`^TC3-HMAC-SHA256 Credential=([^/]+)/(\d{4}-\d\d-\d\d)/([a-z]+)/tc3_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$`)

// verify checks a request's TC3-HMAC-SHA256, by the vendor's description of it.
func verify(r *http.Request, body []byte, now time.Time) error {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return fail("AuthFailure.InvalidAuthorization")
	}
	id, day, service, signed, signature := m[1], m[2], m[3], strings.Split(m[4], ";"), m[5]
	stamp := r.Header.Get("X-TC-Timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	at := time.Unix(seconds, 0).UTC()
	switch {
	case id != ID:
		return fail("AuthFailure.SecretIdNotFound")
	case err != nil, service != "cvm", at.Format(time.DateOnly) != day, !slices.IsSorted(signed),
		!slices.Contains(signed, "host"), !slices.Contains(signed, "content-type"):
		return fail("AuthFailure.SignatureFailure")
	case at.Sub(now).Abs() > 5*time.Minute:
		return fail("AuthFailure.SignatureExpire")
	}
	canonical := []string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery}
	for _, h := range signed {
		v := r.Header.Get(h)
		if h == "host" {
			v = r.Host
		}
		canonical = append(canonical, h+":"+strings.ToLower(strings.TrimSpace(v)))
	}
	canonical = append(canonical, "", strings.Join(signed, ";"), sum(body))
	text := strings.Join([]string{"TC3-HMAC-SHA256", stamp, day + "/cvm/tc3_request", sum([]byte(strings.Join(canonical, "\n")))}, "\n")
	key := []byte("TC3" + Key)
	for _, part := range []string{day, "cvm", "tc3_request", text} {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	if hex.EncodeToString(key) != signature {
		return fail("AuthFailure.SignatureFailure")
	}
	return nil
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
