package chatops

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/shopspring/decimal"

	"lowtide/shared/click"
	"lowtide/shared/fleet"
	"lowtide/shared/order"
)

// word is what somebody wants.
type word struct {
	verb  string
	about string        // a workload, a plan
	money fleet.Money   // budget
	wait  time.Duration // silence, keep
	why   string
	hash  string    // of the plan that was shown; "": as it is now
	until time.Time // of a button or link
	again bool      // said twice on purpose
}

// verbs are what can be said in chat; order knows what each needs. What a viewer may say changes nothing.
var verbs = []string{
	"help", "status", "offers", "why", "plan", "approve", "deny", "pause", "resume", "checkpoint", "replan", "keep", "silence", "budget", "stop", "panic", "go",
}

var synonyms = map[string]string{
	"": "help", "reject": "deny", "ckpt": "checkpoint", "save": "checkpoint", "mute": "silence", "withdraw": "stop",
	"状态": "status", "报价": "offers", "为什么": "why", "计划": "plan", "批准": "approve", "拒绝": "deny", "暂停": "pause", "恢复": "resume",
	"停止": "stop", "保持": "keep", "检查点": "checkpoint", "预算": "budget", "静默": "silence", "帮助": "help",
}

func (o word) reads() bool { return order.Needs(o.verb) == order.Viewer }

// errOrder is what the person is told.
type errOrder string

func (e errOrder) Error() string { return string(e) }

// maxText is the longest command.
const maxText = 1000

// parse reads a command such as "budget train-7 20 USD".
func parse(text string) (word, error) {
	if len(text) > maxText {
		return word{}, errOrder("too long for a command")
	}
	words := strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })
	for len(words) > 0 && (strings.HasPrefix(words[0], "@") || strings.HasPrefix(words[0], "/")) { // our own name
		words = words[1:]
	}
	o := word{verb: "help"}
	if len(words) == 0 {
		return o, nil
	}
	o.verb = strings.ToLower(words[0])
	if s, ok := synonyms[o.verb]; ok {
		o.verb = s
	}
	if !slices.Contains(verbs, o.verb) {
		return word{verb: "help"}, errOrder(fmt.Sprintf("there is no command %q; help lists them", short(words[0])))
	}
	words = words[1:]
	if n := len(words); n > 0 && words[n-1] == "again" {
		o.again, words = true, words[:n-1]
	}
	return o, o.rest(words)
}

// rest reads what follows the verb.
func (o *word) rest(words []string) (err error) {
	next := func() (w string) {
		if len(words) > 0 {
			w, words = words[0], words[1:]
		}
		return w
	}
	switch o.verb {
	case "why", "approve", "deny", "pause", "resume", "stop", "checkpoint", "replan":
		if o.about = next(); o.about == "" {
			return errOrder(o.verb + ": of what? Say " + o.verb + " NAME")
		}
		if o.verb == "approve" || o.verb == "deny" {
			o.hash = next()
		}
	case "budget":
		o.about = next()
		if o.money, err = amount(next(), next()); err != nil || o.about == "" {
			return errOrder("say budget WORKLOAD AMOUNT USD")
		}
	case "keep":
		if o.about = next(); o.about == "" {
			return errOrder("keep: what? Say keep WORKLOAD, or keep WORKLOAD 8h")
		}
		if text := next(); text != "" {
			if o.wait, err = time.ParseDuration(text); err != nil || o.wait <= 0 || o.wait > 30*24*time.Hour {
				return errOrder("keep: say for how long: keep WORKLOAD 8h; 720h at most")
			}
		}
	case "silence":
		o.about = next()
		if o.wait, err = time.ParseDuration(next()); err != nil || o.about == "" || o.wait < 0 || o.wait > 30*24*time.Hour {
			return errOrder("say silence WORKLOAD 2h [why]; a pattern such as train-* is good too, 0s ends it")
		}
		o.why, words = short(strings.Join(words, " ")), nil
	case "panic":
		o.why, words = short(strings.Join(words, " ")), nil
	}
	if len(o.about) > 100 {
		return errOrder("no name is so long")
	}
	if len(words) > 0 {
		return errOrder(fmt.Sprintf("%s: %q is one word too many", o.verb, short(words[0])))
	}
	return nil
}

func amount(n, currency string) (fleet.Money, error) {
	a, err := decimal.NewFromString(n)
	if err != nil || !a.IsPositive() || len(n) > 20 || a.Exponent() > 9 || a.Exponent() < -9 {
		return fleet.Money{}, errors.New("no amount")
	}
	if currency != "" && !strings.EqualFold(currency, "USD") {
		return fleet.Money{}, errors.New("budgets are in USD")
	}
	return fleet.Money{Amount: a, Currency: fleet.USD}, nil
}

func short(s string) string {
	if r := []rune(s); len(r) > 200 {
		return string(r[:200]) + "…"
	}
	return s
}

// pressed is the order of a button or a link.
func (d *desk) pressed(token string) (word, error) {
	c, err := click.Open([]byte(d.Links.Secret), d.Fleet, token)
	if err != nil {
		return word{}, err
	}
	return word{verb: c.Act, about: c.Plan, hash: c.Hash, until: c.Expires}, nil
}
