package tencent

import (
	"encoding/json"
	"fmt"

	"lowtide/shared/provider"
)

// hints say how to mend what a person must.
var hints = map[string]string{
	noSpot: "spot is not opened for this account; apply for it in the vendor's console",
}

const noSpot = "InvalidInstanceChargeType.OnlySupportedForSpot"

// codes sorts CVM's codes. One that is not known, and an error inside the cloud, may have come after a purchase: the token is
// asked again.
var codes = provider.Codes{
	{Is: provider.ErrNoCapacity, Codes: []string{
		"ResourcesSoldOut*", "ResourceInsufficient*", "InvalidParameterValue.InsufficientOffering", "InvalidParameterValue.InsufficientPrice",
		"InvalidParameter.InvalidCloudDiskSoldOut", "InvalidParameterValue.InstanceTypeRequiredHpcCluster", "LimitExceeded.VpcSubnetNum",
		"UnsupportedOperation.NoInstanceTypeSupportSpot", "UnsupportedOperation.SpotUnsupportedRegion",
	}},
	{Is: provider.ErrQuota, Codes: []string{"LimitExceeded*", "InstancesQuotaLimitExceeded", "OverQuota"}},
	{Is: provider.ErrThrottled, Codes: []string{"RequestLimitExceeded*"}},
	{Is: provider.ErrDenied, Codes: []string{
		"AuthFailure*", "UnauthorizedOperation*", "AccountQualificationRestrictions", "InvalidAccount*", "InvalidPermission", "IpInBlacklist",
		"IpNotInWhitelist", noSpot,
	}},
	{Is: provider.ErrNotFound, Codes: []string{"InvalidInstanceId.*"}},
	// It may work in a moment: the machine is busy with something else.
	{Is: provider.ErrUnavailable, Codes: []string{
		"ServiceUnavailable*", "ResourceUnavailable*", "MutexOperation.*", "OperationDenied.InstanceOperationInProgress", "InvalidInstanceState*",
		"UnsupportedOperation.InstanceState*", "ResourceInUse*",
	}},
	{Is: provider.ErrInvalid, Codes: []string{
		"Invalid*", "Missing*", "UnknownParameter*", "Unsupported*", "OperationDenied*", "ResourceNotFound*", "NoSuch*", "ActionOffline", "RequestSizeLimitExceeded*",
	}},
}

// read takes an answer apart: into out, or into an error of the closed list. The cloud answers 200 also when it refuses.
func read(a provider.Answer, writes bool, out any) error {
	var said struct {
		Response *struct {
			Error *struct {
				Code string
			}
			RequestID string `json:"RequestId"`
		}
	}
	bad := json.Unmarshal(a.Body, &said)
	switch {
	case bad != nil && provider.Status(a.Status, writes) != nil:
		return codes.Refusal(a.Status, "", writes)
	case bad != nil, said.Response == nil:
		return fmt.Errorf("%w: an answer that is not the API's JSON", provider.Lost(writes))
	}
	if e := said.Response.Error; e != nil {
		p := codes.Refusal(a.Status, e.Code, writes)
		p.Hint, p.Time = hints[p.Code], p.Code == "AuthFailure.SignatureExpire"
		return p
	}
	if a.Status >= 300 {
		return codes.Refusal(a.Status, "", writes)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(a.Body, &struct{ Response any }{out}); err != nil {
		return fmt.Errorf("%w: an answer that is not of the API's schema", provider.Lost(writes))
	}
	return nil
}
