// Command lambda is provision on AWS. In a dry run every writing request is refused at the transport.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"lowtide/events"
	"lowtide/functions/provision"
	"lowtide/shared/fn"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/provider/all"
)

func main() {
	lambda.Main("provision", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		getenv, err := h.Env(ctx)
		if err != nil {
			return lambda.Handlers{}, err
		}
		accounts, err := all.Accounts(ctx, all.Options{Getenv: getenv, Now: h.Clock.Now, Dry: h.Dry})
		if err != nil {
			return lambda.Handlers{}, err
		}
		claims, err := h.Bucket(ctx, "claims")
		if err != nil {
			return lambda.Handlers{}, err
		}
		data := map[string]string{}
		if own := h.Getenv("LOWTIDE_USER_DATA"); own != "" {
			if err := json.Unmarshal([]byte(own), &data); err != nil {
				return lambda.Handlers{}, fmt.Errorf("LOWTIDE_USER_DATA: %w", err)
			}
		}
		opts := provision.Options{Now: h.Clock.Now, UserData: data}
		if url := h.Getenv("LOWTIDE_JOIN"); url != "" {
			key, err := h.Setting(ctx, "LOWTIDE_JOIN_KEY")
			if err != nil {
				return lambda.Handlers{}, err
			}
			raw, err := base64.StdEncoding.DecodeString(key)
			if err != nil || len(raw) < 32 {
				return lambda.Handlers{}, fmt.Errorf("LOWTIDE_JOIN_KEY: want 32 bytes in base64, as door.json has them: %w", err)
			}
			opts.PerPlan = provision.Join(url, raw)
		}
		var carry, twins []fn.Function
		for _, a := range accounts {
			carry = append(carry, provision.New("provision", a, claims, opts))
			twins = append(twins, provision.Twins("provision-twins", a, claims, opts))
		}
		return lambda.Handlers{Function: forEach(carry), Others: []fn.Function{forEach(twins)}}, nil
	})
}

// forEach hands a batch to the function of every account: each takes what is its own.
func forEach(each []fn.Function) fn.Function {
	f := each[0]
	f.Handle = func(ctx context.Context, batch []fn.Delivery) (said []events.Event, err error) {
		var errs []error
		for _, f := range each {
			facts, err := f.Handle(ctx, batch)
			said, errs = append(said, facts...), append(errs, err)
		}
		if len(said) > 0 {
			return said, nil // what failed beside it is looked at when it is said again
		}
		return nil, errors.Join(errs...)
	}
	return f
}
