package huawei

import (
	"encoding/json"
	"fmt"

	"lowtide/shared/provider"
)

// codes sorts the vendor's codes: of ECS, of its gateway and of BSS. A code that is in no row means what its status says.
var codes = provider.Codes{
	{Is: provider.ErrNoCapacity, Codes: []string{"Ecs.0018", "Ecs.0044", "Ecs.0319", "Ecs.0703"}}, // the last: the limit is under the market
	{Is: provider.ErrQuota, Codes: []string{"Ecs.0001"}},
	{Is: provider.ErrThrottled, Codes: []string{"APIGW.0308", "CBC.0250"}},
	{Is: provider.ErrDenied, Codes: []string{"Ecs.0003", "APIGW.03*", "APIGW.1009", "CBC.0150", "CBC.0151", "IAM.*"}},

	{Is: provider.ErrNotFound, Codes: []string{"Ecs.0114", "Ecs.0614"}},
	{Is: provider.ErrUnavailable, Codes: []string{"Ecs.0702"}}, // the price could not be asked: nothing was bought
	{Is: provider.ErrInvalid, Codes: []string{"Ecs.0005", "Ecs.0076", "Ecs.0077", "Ecs.0704", "Ecs.0705", "Ecs.0902", "Ecs.0903", "CBC.0100"}},
}

// explain reads a refusal: {"error": {"code"}} of ECS, {"error_code"} of the gateway and BSS.
func explain(a provider.Answer, writes bool) error {
	var said struct {
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
		Code string `json:"error_code"`
	}
	if json.Unmarshal(a.Body, &said) != nil {
		said.Error.Code, said.Code = "", ""
	}
	code := said.Error.Code
	if code == "" {
		code = said.Code
	}
	p := codes.Refusal(a.Status, code, writes)
	p.Time = code == "APIGW.0301" // the signature, or its time
	return p
}

// read takes an answer apart.
func read(a provider.Answer, writes bool, out any) error {
	if a.Status >= 300 {
		return explain(a, writes)
	}
	if out != nil && json.Unmarshal(a.Body, out) != nil {
		return fmt.Errorf("%w: an answer that is not the API's JSON", provider.Lost(writes))
	}
	return nil
}
