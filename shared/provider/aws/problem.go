package aws

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"lowtide/shared/provider"
)

// problem is a refusal in the cloud's words.
type problem struct {
	code string
	is   error
	time bool // may be about the time of the signature
}

func (p *problem) Error() string { return fmt.Sprintf("%v (%s)", p.is, p.code) }
func (p *problem) Unwrap() error { return p.is }

// meanings sorts EC2's codes; a code ending in "*" stands for all that begin so. The first row that fits counts.
var meanings = []struct {
	is    error
	codes []string
}{
	{provider.ErrNoCapacity, []string{
		"InsufficientInstanceCapacity", "Server.InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
		"UnfulfillableCapacity", "Unsupported", "InsufficientFreeAddressesInSubnet", "ReservationCapacityExceeded", "SpotMaxPriceTooLow",
	}},
	{provider.ErrQuota, []string{"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "MaxFleetCountExceeded", "InstanceLimitExceeded", "VolumeLimitExceeded"}},
	{provider.ErrThrottled, []string{"RequestLimitExceeded", "Throttling*", "RequestThrottled*", "EC2ThrottledException", "TooManyRequestsException", "ConcurrentTagAccess"}},
	{provider.ErrDenied, []string{
		"UnauthorizedOperation", "AuthFailure*", "AccessDenied*", "OptInRequired", "Blocked", "PendingVerification", "InvalidClientTokenId",
		"ExpiredToken*", "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidSignatureException", "UnrecognizedClientException",
		"MissingAuthenticationToken*", "IncompleteSignature*", "InvalidAction", "AccountDisabled",
	}},
	{provider.ErrNotFound, []string{"InvalidInstanceID.*", "InvalidSpotInstanceRequestID.*"}},
	{provider.ErrUnavailable, []string{"Unavailable", "ServiceUnavailable*"}},
	{provider.ErrInvalid, []string{"IdempotentParameterMismatch", "Invalid*", "Missing*", "Unknown*", "Malformed*", "UnsupportedOperation"}},
}

// aboutTime are the codes of a signature that was refused; EC2 says AuthFailure also when the time is off.
var aboutTime = []string{"RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure"}

func explain(status int, code string, writes bool) error {
	p := &problem{code: code, time: slices.Contains(aboutTime, code)}
	if code == "" || len(code) > 80 || strings.ContainsAny(code, " \n") {
		p.code = fmt.Sprintf("status %d", status)
		p.is = provider.Status(status, writes)
		return p
	}
	for _, m := range meanings {
		if slices.ContainsFunc(m.codes, func(c string) bool {
			begin, open := strings.CutSuffix(c, "*")
			return c == code || open && strings.HasPrefix(code, begin)
		}) {
			p.is = m.is
			return p
		}
	}
	p.is = provider.Status(status, writes)
	return p
}

func queryProblem(a provider.Answer, writes bool) error {
	var e struct {
		Code string `xml:"Errors>Error>Code"`
	}
	if xml.Unmarshal(a.Body, &e) != nil {
		e.Code = ""
	}
	return explain(a.Status, e.Code, writes)
}

func jsonProblem(a provider.Answer) error {
	var e struct {
		Type string `json:"__type"`
	}
	if json.Unmarshal(a.Body, &e) != nil {
		e.Type = ""
	}
	return explain(a.Status, e.Type[strings.LastIndex(e.Type, "#")+1:], false)
}
