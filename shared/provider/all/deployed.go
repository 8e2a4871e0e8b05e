package all

import (
	"context"
	"errors"
	"strings"

	"lowtide/shared/provider"
	"lowtide/shared/provider/fake"
)

// Accounts are the accounts of a function that was deployed on its own: those that the settings configure, or the fake cloud
// at LOWTIDE_CLOUD. None is an error that says why each was skipped.
func Accounts(ctx context.Context, o Options) ([]provider.Provider, error) {
	if url := o.Getenv("LOWTIDE_CLOUD"); url != "" {
		c, err := fake.Dial(ctx, url)
		if err != nil {
			return nil, err
		}
		if o.Dry {
			return []provider.Provider{provider.Dry(c, o.Now)}, nil
		}
		return []provider.Provider{c}, nil
	}
	clouds, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	var out []provider.Provider
	var why []string
	for _, c := range clouds {
		if c.Provider != nil {
			out = append(out, c.Provider)
		} else {
			why = append(why, c.Name+": "+c.Skipped)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no cloud is configured: " + strings.Join(why, "; "))
	}
	return out, nil
}
