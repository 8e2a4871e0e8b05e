package notify

// Links signs the decisions that messages offer.
type Links struct {
	Base   string // URL of the page where a link is decided; "": none
	Secret []byte // none: nothing is offered
}

// actions are the decisions on a plan.
func (l Links) actions(w *Words, r Route, fleetName string, a *Ask) []Action {
	if len(l.Secret) == 0 {
		return nil
	}
	return nil
}
