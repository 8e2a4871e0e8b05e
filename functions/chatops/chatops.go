// Package chatops hears people: commands and buttons of Slack, Feishu, DingTalk, Telegram and Discord, links for robots that only
// send, and other systems' alerts, each over HTTP.
//
// It promises that a request is believed only when its signature over the raw body is right and its time within five
// minutes, once; that what a person may do is bounded by their role and by an amount of money; that a decision counts
// for the plan as it was shown and for no other; that each act, done or refused, is a fact of its own, person.acted;
// and that the answer comes at once: it says facts, and the ring does the work. What it refuses it refuses with the
// reason, and no answer or fact holds a secret.
// It is an http.Handler, and knows no host.
//
//	word    text → word            word.go
//	act     word → facts, answer   act.go
//	seen    what was taken before   seen.go
//	slack, feishu, dingtalk, telegram, discord, link, alerts: the doors
package chatops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/fn"
	"lowtide/shared/plan"
	"lowtide/shared/plan/pool"
	"lowtide/shared/store"
)

// Config makes a desk for one fleet. A door without its secrets is closed.
type Config struct {
	Fleet  string
	Say    fn.Say
	States store.Bucket     // rebalance's, read only
	Market store.Bucket     // prices', read only
	Seen   store.Bucket     // chatops' own: what was taken before
	Now    func() time.Time // lowtide's time
	Wall   func() time.Time // for signatures; nil: time.Now
	Policy plan.Policy      // for why and plan: what the decider would do
	By     plan.Oracle      // prices what can be done, as the decider's does; nil: tables of its own
	HTTP   *http.Client     // for answers to Slack; nil: a plain one

	Settings
}

// desk is what all doors share.
type desk struct {
	Config
	names map[string]string // platform and id → name
}

// maxBody is the largest request.
const maxBody = 256 << 10

// New makes the handler.
func New(cfg Config) (http.Handler, error) {
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Now == nil {
		cfg.Now = cfg.Wall
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{Timeout: 1500 * time.Millisecond, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if cfg.By == nil {
		cfg.By = pool.NewTables(16 << 20) // cold ones answer by the simple rule: a person does not wait for tables
	}
	d := &desk{Config: cfg, names: map[string]string{}}
	for _, name := range fleet.Sorted(cfg.People) {
		p := cfg.People[name]
		if err := p.check(); err != nil {
			return nil, fmt.Errorf("chatops: %s: %w", name, err)
		}
		for via, id := range p.ids() {
			if other, twice := d.names[via+"/"+id]; twice {
				return nil, fmt.Errorf("chatops: %s and %s have one %s id", other, name, via)
			}
			d.names[via+"/"+id] = name
		}
	}
	mux := http.NewServeMux()
	for _, door := range []struct {
		open  bool
		path  string
		serve func(http.ResponseWriter, *http.Request, []byte)
	}{
		{cfg.Slack.Secret != "", "POST /slack", d.slack},
		{cfg.Feishu.EncryptKey != "", "POST /feishu", d.feishu},
		{cfg.DingTalk.Secret != "", "POST /dingtalk", d.dingtalk},
		{cfg.Telegram.Secret != "", "POST /telegram", d.telegram},
		{cfg.Discord.PublicKey != "", "POST /discord", d.discord},
		{cfg.Links.Secret != "", "GET /decide", d.show},
		{cfg.Links.Secret != "", "POST /decide", d.press},
		{cfg.Alerts.Bearer != "", "POST /alertmanager", d.alertmanager},
		{cfg.Alerts.Bearer != "", "POST /events", d.cloudEvent},
	} {
		if door.open {
			mux.HandleFunc(door.path, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
				if err != nil {
					http.Error(w, "the request is too large or broke off", http.StatusRequestEntityTooLarge)
					return
				}
				w.Header().Set("Cache-Control", "no-store")
				door.serve(w, r, body)
			})
		}
	}
	return mux, nil
}

// request is one word of somebody, believed.
type request struct {
	via  string // "slack", …
	user string // the platform's id
	id   string // unique for this request, so that a repeat is known
}

// patience is how long a request may take inside; the platforms give three seconds.
const patience = 2 * time.Second

// take carries an order out and returns what the person is told. It is done once for each request.
func (d *desk) take(ctx context.Context, r request, o word) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	name, p := d.person(r)
	res := d.act(ctx, name, p, r, o)
	if !o.reads() || !res.done {
		audit := events.PersonActed{By: name, Via: r.via, Act: o.verb, About: o.about, Done: res.done, Result: res.text}
		if name == "" {
			audit.By = "unknown " + r.user
		}
		res.facts = append(res.facts, audit)
	}
	said := make([]events.Event, len(res.facts))
	for i, f := range res.facts {
		said[i] = events.New(d.Fleet, "chatops/"+r.via, d.Now(), f)
		said[i].ID = fmt.Sprintf("%s-%s-%d", said[i].ID, digest(r.via, r.user, r.id), i)
	}
	if len(said) > 0 {
		if err := d.Say(ctx, said...); err != nil {
			return d.lang("not done: lowtide's own message bus does not answer; try again", "未执行：lowtide 的消息总线没有应答，请重试")
		}
	}
	return res.text
}

// refuse answers a request that is not believed. It says why, and nothing that helps a forger.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusUnauthorized
	switch {
	case errors.Is(err, errBroken):
		code = http.StatusBadRequest
	case errors.Is(err, errTwice):
		code = http.StatusConflict
	case errors.Is(err, errAway):
		code = http.StatusServiceUnavailable
	}
	http.Error(w, err.Error(), code)
}

// Why a request is not believed.
var (
	errSignature = errors.New("the signature is not right: is this the secret of the same app?")
	errTime      = errors.New("its time is more than five minutes from ours: it is old, or a clock is wrong")
	errBroken    = errors.New("it cannot be read")
	errTwice     = errors.New("it was taken before")
	errAway      = errors.New("the store does not answer; try again")
)

// lang picks the language of the desk.
func (d *desk) lang(en, zh string) string {
	if d.Language == "zh-CN" {
		return zh
	}
	return en
}
