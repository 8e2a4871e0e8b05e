package alibabatest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"lowtide/shared/provider/fake"
)

var authorization = regexp.MustCompile(`^ACS3-HMAC-SHA256 Credential=([^,]+),SignedHeaders=([^,]+),Signature=([0-9a-f]{64})$`)

// verify checks a request's signature by Signature, and that it signs what it must.
func (s *Server) verify(r *http.Request, body []byte, now time.Time) error {
	m := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if m == nil {
		return fail{http.StatusBadRequest, "IncompleteSignature", "The request signature does not conform to Aliyun standards."}
	}
	id, signed, signature := m[1], strings.Split(m[2], ";"), m[3]
	at, err := time.Parse(time.RFC3339, r.Header.Get("x-acs-date"))
	nonce := r.Header.Get("x-acs-signature-nonce")
	s.mu.Lock()
	used := s.nonces[nonce]
	s.nonces[nonce] = true
	s.mu.Unlock()
	switch {
	case id != KeyID:
		return fail{http.StatusNotFound, "InvalidAccessKeyId.NotFound", "Specified access key is not found."}
	case err != nil || at.Sub(now).Abs() > 15*time.Minute:
		return fail{http.StatusBadRequest, "InvalidTimeStamp.Expired", "Specified time stamp or date value is expired."}
	case nonce == "" || used:
		return fail{http.StatusBadRequest, "SignatureNonceUsed", "Specified signature nonce was used already."}
	case r.Header.Get("x-acs-content-sha256") != fake.Digest(string(body)):
		return fail{http.StatusBadRequest, "InvalidContentSha256", "The content does not have that digest."}
	}
	for name := range r.Header {
		if n := strings.ToLower(name); strings.HasPrefix(n, "x-acs-") && !slices.Contains(signed, n) {
			return fail{http.StatusBadRequest, "SignatureDoesNotMatch", n + " is not signed."}
		}
	}
	h := map[string]string{"host": r.Host}
	for _, n := range signed {
		if n != "host" {
			h[n] = r.Header.Get(n)
		}
	}
	if !slices.Contains(signed, "host") || !hmac.Equal([]byte(Signature(Secret, r.Method, r.URL.Query(), h)), []byte(signature)) {
		return fail{http.StatusBadRequest, "SignatureDoesNotMatch", "Specified signature is not matched with our calculation."}
	}
	return nil
}

// Signature is the ACS3-HMAC-SHA256 signature of an RPC request by the vendor's description: headers are lower-case names
// with values, all of which are signed, x-acs-content-sha256 among them.
func Signature(secret, method string, query url.Values, headers map[string]string) string {
	names := make([]string, 0, len(headers))
	for n := range headers {
		names = append(names, n)
	}
	slices.Sort(names)
	lines := []string{method, "/", fake.Canonical(query)}
	for _, n := range names {
		lines = append(lines, n+":"+strings.TrimSpace(headers[n]))
	}
	lines = append(lines, "", strings.Join(names, ";"), headers["x-acs-content-sha256"])
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte("ACS3-HMAC-SHA256\n" + fake.Digest(strings.Join(lines, "\n"))))
	return hex.EncodeToString(mac.Sum(nil))
}
