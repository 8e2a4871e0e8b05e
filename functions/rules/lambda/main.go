// Command lambda is rules on AWS: the relay hands it what the rules hear, and the webhooks that they ask for. The file is
// LOWTIDE_RULES, or the secret that LOWTIDE_RULES_SECRET names; the relay has the same one (lowtide relay --rules). What it
// submits stands in it (spec): there are no files here.
package main

import (
	"context"
	"fmt"

	"lowtide/functions/rules"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("rules", func(ctx context.Context, h *lambda.Host) (out lambda.Handlers, err error) {
		text, err := h.Setting(ctx, "LOWTIDE_RULES")
		if err != nil {
			return out, err
		}
		set, err := rules.Parse("LOWTIDE_RULES", []byte(text), rules.Options{})
		if err != nil {
			return out, fmt.Errorf("rules: %w", err)
		}
		cfg := rules.Config{Fleet: h.Fleet, Now: h.Clock.Now}
		if cfg.Books, err = h.Bucket(ctx, "rules"); err != nil {
			return out, err
		}
		if cfg.States, err = h.Bucket(ctx, "fleets"); err != nil {
			return out, err
		}
		if cfg.Market, err = h.Bucket(ctx, "market"); err != nil {
			return out, err
		}
		if fns := rules.New(cfg, set); len(fns) > 0 {
			out.Function, out.Others = fns[0], fns[1:]
		}
		return out, nil
	})
}
