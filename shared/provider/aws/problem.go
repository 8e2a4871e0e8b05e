package aws

import (
	"encoding/json"
	"encoding/xml"
	"slices"
	"strings"

	"lowtide/shared/provider"
)

// codes sorts EC2's codes. A code that is in no row means what its status says.
var codes = provider.Codes{
	{Is: provider.ErrNoCapacity, Codes: []string{
		"InsufficientInstanceCapacity", "Server.InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
		"UnfulfillableCapacity", "Unsupported", "InsufficientFreeAddressesInSubnet", "ReservationCapacityExceeded", "SpotMaxPriceTooLow",
	}},
	{Is: provider.ErrQuota, Codes: []string{"VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "MaxFleetCountExceeded", "InstanceLimitExceeded", "VolumeLimitExceeded"}},
	{Is: provider.ErrThrottled, Codes: []string{"RequestLimitExceeded", "Throttling*", "RequestThrottled*", "EC2ThrottledException", "TooManyRequestsException", "ConcurrentTagAccess"}},
	{Is: provider.ErrDenied, Codes: []string{
		"UnauthorizedOperation", "AuthFailure*", "AccessDenied*", "OptInRequired", "Blocked", "PendingVerification", "InvalidClientTokenId",
		"ExpiredToken*", "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidSignatureException", "UnrecognizedClientException",
		"MissingAuthenticationToken*", "IncompleteSignature*", "InvalidAction", "AccountDisabled",
	}},
	{Is: provider.ErrNotFound, Codes: []string{"InvalidInstanceID.*", "InvalidSpotInstanceRequestID.*"}},
	{Is: provider.ErrUnavailable, Codes: []string{"Unavailable", "ServiceUnavailable*"}},
	{Is: provider.ErrInvalid, Codes: []string{"IdempotentParameterMismatch", "Invalid*", "Missing*", "Unknown*", "Malformed*", "UnsupportedOperation"}},
}

// aboutTime are the codes of a signature that was refused; EC2 says AuthFailure also when the time is off.
var aboutTime = []string{"RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "InvalidSignatureException", "AuthFailure"}

func explain(status int, code string, writes bool) error {
	p := codes.Refusal(status, code, writes)
	p.Time = slices.Contains(aboutTime, p.Code)
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
