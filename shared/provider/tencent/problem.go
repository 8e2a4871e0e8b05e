package tencent

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

func (p *problem) Error() string { return fmt.Sprintf("%v (%s)%s", p.is, p.code, hints[p.code]) }
func (p *problem) Unwrap() error { return p.is }

// hints say how to mend what a person must.
var hints = map[string]string{
	noSpot: ": spot is not opened for this account; apply for it in the vendor's console",
}

const noSpot = "InvalidInstanceChargeType.OnlySupportedForSpot"

// meanings sorts CVM's codes; a code ending in "*" stands for all that begin so. The first row that fits counts.
var meanings = []struct {
	is    error
	codes []string
}{
	{provider.ErrNoCapacity, []string{
		"ResourcesSoldOut*", "ResourceInsufficient*", "InvalidParameterValue.InsufficientOffering", "InvalidParameterValue.InsufficientPrice",
		"InvalidParameter.InvalidCloudDiskSoldOut", "InvalidParameterValue.InstanceTypeRequiredHpcCluster", "LimitExceeded.VpcSubnetNum",
		"UnsupportedOperation.NoInstanceTypeSupportSpot", "UnsupportedOperation.SpotUnsupportedRegion",
	}},
	{provider.ErrQuota, []string{"LimitExceeded*", "InstancesQuotaLimitExceeded", "OverQuota"}},
	{provider.ErrThrottled, []string{"RequestLimitExceeded*"}},
	{provider.ErrDenied, []string{
		"AuthFailure*", "UnauthorizedOperation*", "AccountQualificationRestrictions", "InvalidAccount*", "InvalidPermission", "IpInBlacklist",
		"IpNotInWhitelist", noSpot,
	}},
	{provider.ErrNotFound, []string{"InvalidInstanceId.*"}},
	// It may work in a moment: the machine is busy with something else.
	{provider.ErrUnavailable, []string{
		"ServiceUnavailable*", "ResourceUnavailable*", "MutexOperation.*", "OperationDenied.InstanceOperationInProgress", "InvalidInstanceState*",
		"UnsupportedOperation.InstanceState*", "ResourceInUse*",
	}},
	{provider.ErrInvalid, []string{
		"Invalid*", "Missing*", "UnknownParameter*", "Unsupported*", "OperationDenied*", "ResourceNotFound*", "NoSuch*", "ActionOffline", "RequestSizeLimitExceeded*",
	}},
}

// meaning is the closed list's error for a code. One that is not known, and an error inside the cloud, may have come
// after a purchase: the token is asked again.
func meaning(code string, writes bool) error {
	for _, m := range meanings {
		if slices.ContainsFunc(m.codes, func(c string) bool {
			begin, open := strings.CutSuffix(c, "*")
			return c == code || open && strings.HasPrefix(code, begin)
		}) {
			return m.is
		}
	}
	return lost(writes)
}

func lost(writes bool) error {
	if writes {
		return provider.ErrUnknown
	}
	return provider.ErrUnavailable
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
		return &problem{fmt.Sprintf("status %d", a.Status), provider.Status(a.Status, writes)}
	case bad != nil, said.Response == nil:
		return fmt.Errorf("%w: an answer that is not the API's JSON", lost(writes))
	}
	if e := said.Response.Error; e != nil {
		code := e.Code
		if code == "" || len(code) > 80 || strings.ContainsAny(code, " \n") {
			code = "without a code"
		}
		return &problem{code, meaning(code, writes)}
	}
	if err := provider.Status(a.Status, writes); err != nil {
		return &problem{fmt.Sprintf("status %d", a.Status), err}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(a.Body, &struct{ Response any }{out}); err != nil {
		return fmt.Errorf("%w: an answer that is not of the API's schema", lost(writes))
	}
	return nil
}
