package provider

import "net/url"

// Clouds keep a mark of ours in one of two ways: as tags (Tags, FromTags), or as one text, a label or a name (Text,
// FromText). Both lead back to the same Labels, and to none for whatever somebody else has written there.

// The tag keys. They fit the clouds' common ground: lower case, digits, dashes, under 55 characters.
const (
	tagFleet    = "lowtide-fleet"
	tagInstall  = "lowtide-install"
	tagPlan     = "lowtide-plan"
	tagMachine  = "lowtide-machine"
	tagWorkload = "lowtide-workload"
)

// Tags are the labels as tags, empty ones left out.
func (l Labels) Tags() map[string]string {
	m := map[string]string{tagFleet: l.Fleet, tagInstall: l.Install, tagPlan: l.Plan, tagMachine: l.Machine, tagWorkload: l.Workload}
	for k, v := range m {
		if v == "" {
			delete(m, k)
		}
	}
	return m
}

// FromTags reads what Tags wrote; the zero Labels if the tags are not ours.
func FromTags(tags map[string]string) Labels {
	if tags[tagInstall] == "" {
		return Labels{}
	}
	return Labels{tags[tagFleet], tags[tagInstall], tags[tagPlan], tags[tagMachine], tags[tagWorkload]}
}

// Text is the labels as one line of printable ASCII.
func (l Labels) Text() string {
	v := url.Values{"f": {l.Fleet}, "i": {l.Install}, "p": {l.Plan}, "m": {l.Machine}}
	if l.Workload != "" {
		v.Set("w", l.Workload)
	}
	return "lowtide?" + v.Encode()
}

// FromText reads what Text wrote; the zero Labels if the text is not ours.
func FromText(s string) Labels {
	u, err := url.Parse(s)
	if err != nil || u.Path != "lowtide" {
		return Labels{}
	}
	v := u.Query()
	if v.Get("i") == "" {
		return Labels{}
	}
	return Labels{v.Get("f"), v.Get("i"), v.Get("p"), v.Get("m"), v.Get("w")}
}
