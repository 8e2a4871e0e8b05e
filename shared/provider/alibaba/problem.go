package alibaba

import (
	"encoding/json"
	"slices"

	"lowtide/shared/provider"
)

// codes sorts ECS's codes. A code that is in no row means what its status says.
var codes = provider.Codes{
	{Is: provider.ErrNoCapacity, Codes: []string{
		"OperationDenied.NoStock", "OperationDenied", "NoInstanceStock", "Zone.NotOnSale", "ResourceNotAvailable", "InvalidResourceType.NotSupported",
		"InvalidSpotPriceLimit.LowerThanPublicPrice", "InvalidVSwitchId.IpNotEnough",
	}},
	{Is: provider.ErrQuota, Codes: []string{"QuotaExceed*", "InstanceQuotaExceed*", "QuotaExceeded*"}},
	{Is: provider.ErrThrottled, Codes: []string{"Throttling*", "ServiceUnavailable.Throttled"}},
	{Is: provider.ErrDenied, Codes: []string{
		"Forbidden*", "Forbbiden*", "NoPermission*", "InvalidAccessKeyId*", "InvalidSecurityToken*", "SignatureDoesNotMatch", "IncompleteSignature",
		"InvalidTimeStamp*", "SignatureNonceUsed", "MissingSecurityToken", "InvalidSpotAuthorized", "InvalidPayMethod", "InvalidAccountStatus*",
		"InvalidAction*", "Account.Arrearage", "InvalidOperation.DeletionProtection", "RealNameAuthenticationError",
	}},
	{Is: provider.ErrNotFound, Codes: []string{"InvalidInstanceId.NotFound", "InvalidInstanceId.Released"}},
	// A machine that is being made cannot be released yet.
	{Is: provider.ErrUnavailable, Codes: []string{"ServiceUnavailable*", "IncorrectInstanceStatus*", "IncorrectInstanceState"}},
	{Is: provider.ErrInvalid, Codes: []string{"IdempotentParameterMismatch", "IdempotenceParamNotMatch", "Invalid*", "Missing*", "Malformed*", "Unsupported*"}},
}

// aboutTime are the codes of a signature that may have been refused for its time.
var aboutTime = []string{"InvalidTimeStamp.Expired", "InvalidTimeStamp.Format", "SignatureDoesNotMatch"}

// explain reads a refusal; its text is never printed, only its code.
func explain(a provider.Answer, writes bool) error {
	var e struct{ Code string }
	if json.Unmarshal(a.Body, &e) != nil {
		e.Code = ""
	}
	p := codes.Refusal(a.Status, e.Code, writes)
	p.Time = slices.Contains(aboutTime, p.Code)
	return p
}
