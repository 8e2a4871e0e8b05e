package alibaba

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"lowtide/shared/provider"
)

// problem is a refusal in the cloud's words.
type problem struct {
	code string
	is   error
}

func (p *problem) Error() string { return fmt.Sprintf("%v (%s)", p.is, p.code) }
func (p *problem) Unwrap() error { return p.is }

// meanings sorts ECS's codes; a code ending in "*" stands for all that begin so. The first row that fits counts. A code
// that is in no row means what its status says.
var meanings = []struct {
	is    error
	codes []string
}{
	{provider.ErrNoCapacity, []string{
		"OperationDenied.NoStock", "OperationDenied", "NoInstanceStock", "Zone.NotOnSale", "ResourceNotAvailable", "InvalidResourceType.NotSupported",
		"InvalidSpotPriceLimit.LowerThanPublicPrice", "InvalidVSwitchId.IpNotEnough",
	}},
	{provider.ErrQuota, []string{"QuotaExceed*", "InstanceQuotaExceed*", "QuotaExceeded*"}},
	{provider.ErrThrottled, []string{"Throttling*", "ServiceUnavailable.Throttled"}},
	{provider.ErrDenied, []string{
		"Forbidden*", "Forbbiden*", "NoPermission*", "InvalidAccessKeyId*", "InvalidSecurityToken*", "SignatureDoesNotMatch", "IncompleteSignature",
		"InvalidTimeStamp*", "SignatureNonceUsed", "MissingSecurityToken", "InvalidSpotAuthorized", "InvalidPayMethod", "InvalidAccountStatus*",
		"InvalidAction*", "Account.Arrearage", "InvalidOperation.DeletionProtection", "RealNameAuthenticationError",
	}},
	{provider.ErrNotFound, []string{"InvalidInstanceId.NotFound", "InvalidInstanceId.Released"}},
	// A machine that is being made cannot be released yet.
	{provider.ErrUnavailable, []string{"ServiceUnavailable*", "IncorrectInstanceStatus*", "IncorrectInstanceState"}},
	{provider.ErrInvalid, []string{"IdempotentParameterMismatch", "IdempotenceParamNotMatch", "Invalid*", "Missing*", "Malformed*", "Unsupported*"}},
}

// aboutTime are the codes of a signature that may have been refused for its time.
var aboutTime = []string{"InvalidTimeStamp.Expired", "InvalidTimeStamp.Format", "SignatureDoesNotMatch"}

// explain reads a refusal; its text is never printed, only its code.
func explain(a provider.Answer, writes bool) error {
	var e struct{ Code string }
	if json.Unmarshal(a.Body, &e) != nil {
		e.Code = ""
	}
	p := &problem{code: e.Code, is: provider.Status(a.Status, writes)}
	if p.is == nil {
		p.is = provider.ErrUnavailable // a redirect, or another thing that is no answer
	}
	if p.code == "" || len(p.code) > 80 || strings.ContainsAny(p.code, " \n") {
		p.code = fmt.Sprintf("status %d", a.Status)
		return p
	}
	for _, m := range meanings {
		if slices.ContainsFunc(m.codes, func(c string) bool {
			begin, open := strings.CutSuffix(c, "*")
			return c == p.code || open && strings.HasPrefix(p.code, begin)
		}) {
			p.is = m.is
			return p
		}
	}
	return p
}
