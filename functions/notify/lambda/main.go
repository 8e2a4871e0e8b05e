// Command lambda is notify on AWS: the relay hands it what people may be told of, and wakes its channels. Its settings are
// LOWTIDE_NOTIFY, or the secret that LOWTIDE_NOTIFY_SECRET names: a notify file with its tokens in it.
package main

import (
	"context"
	"fmt"
	"os"

	"lowtide/functions/notify"
	"lowtide/functions/notify/settings"
	"lowtide/shared/fn"
	"lowtide/shared/fn/lambda"
)

func main() {
	lambda.Main("notify", func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		books, err := h.Bucket(ctx, "notify")
		if err != nil {
			return lambda.Handlers{}, err
		}
		text, err := h.Setting(ctx, "LOWTIDE_NOTIFY")
		if err != nil {
			return lambda.Handlers{}, err
		}
		s, err := settings.Parse([]byte(text), os.DirFS("."), settings.Options{})
		if err != nil {
			return lambda.Handlers{}, fmt.Errorf("LOWTIDE_NOTIFY: %w", err)
		}
		fold, channels, err := notify.Two(notify.Config{
			Fleet: h.Fleet, Books: books, Places: s.Places, Words: s.Words, Links: s.Links, Now: h.Clock.Now, Real: h.Clock.Real,
		})
		return lambda.Handlers{Function: fold, Others: []fn.Function{channels}}, err
	})
}
