package volcengine

import (
	"encoding/json"
	"fmt"
	"slices"

	"lowtide/shared/provider"
)

// codes sorts the vendor's codes. It publishes none for a lack of stock (unverified): what its other codes and its
// neighbours' look like is taken. A code that is in no row means what its status says.
var codes = provider.Codes{
	{Is: provider.ErrDenied, Codes: []string{
		"AccessDenied*", "*Forbidden*", "InvalidAccessKey*", "InvalidCredential*", "InvalidSecurityToken*", "InvalidAuthorization*", "SignatureDoesNotMatch",
		"InvalidSignature*", "InvalidTimestamp*", "RequestExpired", "MissingAuthenticationToken", "Unauthorized*", "*Balance*", "*Arrears*", "AccountFrozen*",
		"InvalidActionOrVersion", "*NotOpen*", "*RealName*",
	}},
	{Is: provider.ErrNoCapacity, Codes: []string{"*NoStock*", "*SoldOut*", "*Insufficient*", "*NotOnSale*", "InvalidInstanceType.NotSupported"}},
	{Is: provider.ErrThrottled, Codes: []string{"*FlowLimit*", "*Throttling*", "*RequestLimit*", "*TooManyRequests*"}},
	{Is: provider.ErrQuota, Codes: []string{"*LimitExceeded*", "*Quota*"}},
	{Is: provider.ErrNotFound, Codes: []string{"InvalidInstance.NotFound", "InvalidInstanceId.NotFound"}},
	// A machine that is being made cannot be deleted yet.
	{Is: provider.ErrUnavailable, Codes: []string{"*ServiceUnavailable*", "InvalidInstance.InvalidInstanceStatus", "IncorrectInstanceStatus*", "*TaskIsRunning*"}},
	{Is: provider.ErrInvalid, Codes: []string{"*IdempotentParameterMismatch*", "Invalid*", "Missing*", "Malformed*", "Unsupported*"}},
}

// aboutTime are the codes of a signature that may have been refused for its time.
var aboutTime = []string{"SignatureDoesNotMatch", "InvalidTimestamp", "RequestExpired"}

// read takes an answer apart: into out, or into an error of the closed list.
func read(a provider.Answer, writes bool, out any) error {
	var said struct {
		Meta struct {
			Error *struct{ Code string }
		} `json:"ResponseMetadata"`
		Result json.RawMessage
	}
	bad := json.Unmarshal(a.Body, &said)
	if a.Status >= 300 || said.Meta.Error != nil {
		code := ""
		if said.Meta.Error != nil {
			code = said.Meta.Error.Code
		}
		p := codes.Refusal(a.Status, code, writes)
		p.Time = slices.Contains(aboutTime, p.Code)
		return p
	}
	if bad == nil && out != nil {
		bad = json.Unmarshal(said.Result, out)
	}
	if bad != nil {
		return fmt.Errorf("%w: an answer that is not the API's JSON", provider.Lost(writes))
	}
	return nil
}
