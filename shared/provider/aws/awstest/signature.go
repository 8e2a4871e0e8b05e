package awstest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"
	"time"
)

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})$`)

// verify checks a request's Signature Version 4, by the vendor's description of it.
func verify(r *http.Request, body []byte, now time.Time) (region, service string, err error) {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return "", "", fail{http.StatusUnauthorized, "MissingAuthenticationToken", "Request is missing Authentication Token"}
	}
	id, day, region, service, signed, signature := m[1], m[2], m[3], m[4], m[5], m[6]
	date := r.Header.Get("X-Amz-Date")
	at, perr := time.Parse("20060102T150405Z", date)
	switch {
	case id != KeyID:
		return "", "", fail{http.StatusUnauthorized, "AuthFailure", "AWS was not able to validate the provided access credentials"}
	case perr != nil || !strings.HasPrefix(date, day):
		return "", "", fail{http.StatusForbidden, "IncompleteSignature", "date"}
	case at.Sub(now).Abs() > 5*time.Minute:
		return "", "", fail{http.StatusBadRequest, "RequestExpired", "Request has expired."}
	}
	var canonical strings.Builder
	canonical.WriteString(r.Method + "\n" + r.URL.EscapedPath() + "\n" + r.URL.RawQuery + "\n")
	hasHost := false
	for _, h := range strings.Split(signed, ";") {
		v := strings.Join(r.Header.Values(h), ",")
		switch h {
		case "host":
			v, hasHost = r.Host, true
		case "content-length":
			v = r.Header.Get("Content-Length")
		}
		canonical.WriteString(h + ":" + strings.TrimSpace(v) + "\n")
	}
	canonical.WriteString("\n" + signed + "\n" + digest(body))
	toSign := "AWS4-HMAC-SHA256\n" + date + "\n" + day + "/" + region + "/" + service + "/aws4_request\n" + digest([]byte(canonical.String()))
	key := mac(mac(mac(mac([]byte("AWS4"+Secret), day), region), service), "aws4_request")
	if !hasHost || !hmac.Equal([]byte(hex.EncodeToString(mac(key, toSign))), []byte(signature)) {
		return "", "", fail{http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided."}
	}
	return region, service, nil
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
