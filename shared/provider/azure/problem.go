package azure

import (
	"encoding/json"
	"strings"

	"lowtide/shared/provider"
)

// codes sorts the vendor's codes. A code that is in no row means what its status says.
var codes = provider.Codes{
	{Is: provider.ErrNoCapacity, Codes: []string{
		"SkuNotAvailable", "ZonalAllocationFailed", "AllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest",
		"SpotPriceGreaterThanMaxPrice", "NotAvailableForSubscription",
	}},
	{Is: provider.ErrQuota, Codes: []string{"QuotaExceeded"}},
	{Is: provider.ErrThrottled, Codes: []string{"TooManyRequests", "SubscriptionRequestsThrottled"}},
	{Is: provider.ErrDenied, Codes: []string{
		"AuthorizationFailed", "LinkedAuthorizationFailed", "ExpiredAuthenticationToken", "InvalidAuthenticationToken*", "AuthenticationFailed", "RequestDisallowedByPolicy",
		"SubscriptionNotFound", "ReadOnlyDisabledSubscription", "DisallowedProvider", "MissingSubscriptionRegistration",
	}},
	{Is: provider.ErrNotFound, Codes: []string{"ResourceNotFound", "ResourceGroupNotFound", "ParentResourceNotFound", "NotFound"}},
	{Is: provider.ErrUnavailable, Codes: []string{"AnotherOperationInProgress", "RetryableError", "ServerTimeout"}},
	{Is: provider.ErrInvalid, Codes: []string{"PropertyChangeNotAllowed", "InvalidParameter", "InvalidRequest*", "ResourcePurchaseValidationFailed", "ImageNotFound"}},
}

// explain reads a refusal. OperationNotAllowed is many things: its text is read, since nothing else tells, and never
// printed.
func explain(a provider.Answer, writes bool) error {
	var said struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(a.Body, &said) != nil {
		said.Error.Code = ""
	}
	p := codes.Refusal(a.Status, said.Error.Code, writes)
	if said.Error.Code != "OperationNotAllowed" {
		return p
	}
	switch text := strings.ToLower(said.Error.Message); {
	case strings.Contains(text, "lowprioritycores quota"):
		p.Is, p.Hint = provider.ErrQuota, "of spot cores"
	case strings.Contains(text, "quota"):
		p.Is = provider.ErrQuota
		if strings.Contains(text, "current limit: 0") {
			p.Hint = "this subscription was never granted any: ask for it"
		}
	case strings.Contains(text, "too many requests"), strings.Contains(text, "throttl"):
		p.Is = provider.ErrThrottled
	}
	return p
}
