package notify

import (
	"net/url"

	"lowtide/shared/click"
)

// Links signs the decisions that messages offer.
type Links struct {
	Base   string // URL of the page where a link is decided; "": none
	Secret []byte // none: nothing is offered
}

// actions are the decisions on a plan.
func (l Links) actions(w *Words, r Route, fleetName string, a *Ask) (out []Action) {
	if len(l.Secret) == 0 {
		return nil
	}
	for _, act := range []string{click.Approve, click.Deny} {
		c := click.Click{Act: act, Plan: a.Plan.ID, Hash: a.Hash, Expires: a.Until}
		one := Action{Act: act, Text: w.word(r, act, nil), Token: c.Sign(l.Secret, fleetName)}
		if l.Base != "" {
			one.URL = l.Base + "/decide?t=" + url.QueryEscape(one.Token)
		}
		out = append(out, one)
	}
	return out
}
