// Command lambda is provision on AWS. In a dry run every writing request is refused at the transport.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"lowtide/functions/provision"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

func main() {
	lambda.Main("provision", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		var cloud provider.Provider
		cloud, err := fake.Dial(ctx, h.Cloud)
		if err != nil {
			return lambda.Handlers{}, err
		}
		if h.Dry {
			cloud = provider.Dry(cloud, h.Clock.Now)
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
		return lambda.Handlers{Function: provision.New("provision", cloud, claims, opts)}, nil
	})
}
