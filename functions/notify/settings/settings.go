// Package settings reads the file that says where people are told what: channels, routes, languages, words.
//
// It promises that what it does not understand is refused in one line that names the field, and that no error of it
// repeats a value: secrets stand in the file, or better in variables that it names as ${NAME}.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // zones also where the host has none
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"lowtide/functions/notify"
	"lowtide/functions/notify/alertmanager"
	"lowtide/functions/notify/dingtalk"
	"lowtide/functions/notify/discord"
	"lowtide/functions/notify/email"
	"lowtide/functions/notify/feishu"
	"lowtide/functions/notify/pagerduty"
	"lowtide/functions/notify/slack"
	"lowtide/functions/notify/teams"
	"lowtide/functions/notify/telegram"
	"lowtide/functions/notify/webhook"
	"lowtide/functions/notify/wecom"
)

// MaxBytes is the largest settings file.
const MaxBytes = 1 << 20

// File is the settings file.
type File struct {
	Language string              `yaml:"language"` // of channels that name none
	Timezone string              `yaml:"timezone"` // the same
	Words    string              `yaml:"words"`    // directory of own templates, relative to the file
	Channels map[string]*Channel `yaml:"channels"`
	Links    Links               `yaml:"links"`
}

// Links are signed pages for platforms without buttons.
type Links struct {
	URL    string `yaml:"url"`    // where chatops answers, "https://lowtide.example.org"
	Secret string `yaml:"secret"` // signs buttons and links
}

// Channel is one of them; exactly one platform is set.
type Channel struct {
	Slack        *slack.Settings        `yaml:"slack"`
	Feishu       *feishu.Settings       `yaml:"feishu"`
	DingTalk     *dingtalk.Settings     `yaml:"dingtalk"`
	WeCom        *wecom.Settings        `yaml:"wecom"`
	Webhook      *webhook.Settings      `yaml:"webhook"`
	Teams        *teams.Settings        `yaml:"teams"`
	Email        *email.Settings        `yaml:"email"`
	PagerDuty    *pagerduty.Settings    `yaml:"pagerduty"`
	Alertmanager *alertmanager.Settings `yaml:"alertmanager"`
	Telegram     *telegram.Settings     `yaml:"telegram"`
	Discord      *discord.Settings      `yaml:"discord"`

	Language  string   `yaml:"language"`
	Timezone  string   `yaml:"timezone"`
	Severity  string   `yaml:"severity"` // least
	Kinds     []string `yaml:"kinds"`
	Team      []string `yaml:"team"` // tags team of workloads
	Workloads []string `yaml:"workloads"`
	Quiet     string   `yaml:"quiet"` // "22:00-07:00"
	Wait      string   `yaml:"wait"`
	Again     string   `yaml:"again"`
	Repeat    string   `yaml:"repeat"`
	Heartbeat string   `yaml:"heartbeat"` // "09:00"; left out: none
}

// Settings are what a file comes to.
type Settings struct {
	Places []notify.Place
	Words  *notify.Words
	Links  notify.Links
}

// Options are what a test sets.
type Options struct {
	Env  func(string) (string, bool) // nil: none
	HTTP *http.Client                // nil: the network
	Now  func() time.Time            // signs; nil: the wall's
}

// Read reads the file called name.
func Read(name string, o Options) (Settings, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return Settings{}, err
	}
	s, err := Parse(b, os.DirFS(filepath.Dir(name)), o)
	if err != nil {
		return Settings{}, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Parse reads a file's text; around is its directory, for templates.
func Parse(b []byte, around fs.FS, o Options) (Settings, error) {
	var f File
	if err := decode(b, &f); err != nil {
		return Settings{}, err
	}
	if err := f.expand(o.Env); err != nil {
		return Settings{}, err
	}
	var s Settings
	var err error
	if s.Words, err = f.words(around); err != nil {
		return Settings{}, err
	}
	if s.Links, err = f.links(); err != nil {
		return Settings{}, err
	}
	for _, name := range sorted(f.Channels) {
		p, err := f.place(name, f.Channels[name], o)
		if err != nil {
			return Settings{}, fmt.Errorf("channel %s: %w", name, err)
		}
		s.Places = append(s.Places, p)
	}
	return s, nil
}

// decode refuses unknown fields. Its errors hold the line and the field, never the text: that may be a secret.
func decode(b []byte, f *File) (err error) {
	switch {
	case len(b) > MaxBytes:
		return fmt.Errorf("larger than %d bytes", MaxBytes)
	case !utf8.Valid(b):
		return errors.New("not UTF-8")
	}
	defer func() {
		if p := recover(); p != nil { // the library has been seen to panic on odd input
			err = errors.New("not YAML")
		}
	}()
	err = yaml.NewDecoder(bytes.NewReader(b), yaml.Strict(), yaml.DisallowUnknownField()).Decode(f)
	if err == nil || err.Error() == "EOF" {
		return nil
	}
	var at yaml.Error
	if errors.As(err, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
		pos := at.GetToken().Position
		return fmt.Errorf("line %d, column %d: %s", pos.Line, pos.Column, reason(at.GetMessage()))
	}
	return errors.New("not a settings file: " + reason(err.Error()))
}

var unknownField = regexp.MustCompile(`unknown field "[a-zA-Z_]+"`)

// reason keeps of the library's words what cannot hold a value of the file.
func reason(s string) string {
	if m := unknownField.FindString(s); m != "" {
		return m
	}
	if strings.Contains(s, "duplicate") {
		return "a key stands twice"
	}
	return "not the kind of value that belongs here"
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// expand puts variables in.
func (f *File) expand(env func(string) (string, bool)) error {
	var missing []string
	each(f, func(s *string) {
		*s = variable.ReplaceAllStringFunc(*s, func(ref string) string {
			name := variable.FindStringSubmatch(ref)[1]
			if env != nil {
				if v, ok := env(name); ok {
					return v
				}
			}
			missing = append(missing, name)
			return ""
		})
	})
	if len(missing) > 0 {
		slices.Sort(missing)
		return fmt.Errorf("variable %s is not set", strings.Join(slices.Compact(missing), ", "))
	}
	return nil
}

func (f *File) words(around fs.FS) (*notify.Words, error) {
	if f.Words == "" {
		return notify.NewWords(nil)
	}
	own, err := fs.Sub(around, filepath.ToSlash(filepath.Clean(f.Words)))
	if err != nil {
		return nil, fmt.Errorf("words: %q is not a directory below the file's", f.Words)
	}
	return notify.NewWords(own)
}

func (f *File) links() (notify.Links, error) {
	if f.Links.Secret == "" && f.Links.URL == "" {
		return notify.Links{}, nil
	}
	if len(f.Links.Secret) < 16 {
		return notify.Links{}, errors.New("links: secret: want 16 characters or more")
	}
	if f.Links.URL != "" {
		u, err := url.Parse(f.Links.URL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return notify.Links{}, errors.New("links: url: not an http URL")
		}
	}
	return notify.Links{Base: strings.TrimSuffix(f.Links.URL, "/"), Secret: []byte(f.Links.Secret)}, nil
}

var placeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

func (f *File) place(name string, c *Channel, o Options) (notify.Place, error) {
	if !placeName.MatchString(name) {
		return notify.Place{}, errors.New("its name: want up to 40 lower-case letters, digits and '-'")
	}
	if c == nil {
		return notify.Place{}, errors.New("no platform is named")
	}
	ch, err := c.open(o)
	if err != nil {
		return notify.Place{}, err
	}
	r, err := c.route(f)
	return notify.Place{Name: name, Channel: ch, Route: r}, err
}

// open makes the one channel that is set.
func (c *Channel) open(o Options) (ch notify.Channel, err error) {
	n := 0
	use := func(set bool, make func() (notify.Channel, error)) {
		if set && err == nil {
			n++
			ch, err = make()
		}
	}
	use(c.Slack != nil, func() (notify.Channel, error) { return slack.New(*c.Slack, o.HTTP) })
	use(c.Feishu != nil, func() (notify.Channel, error) { return feishu.New(*c.Feishu, o.HTTP, o.Now) })
	use(c.DingTalk != nil, func() (notify.Channel, error) { return dingtalk.New(*c.DingTalk, o.HTTP, o.Now) })
	use(c.WeCom != nil, func() (notify.Channel, error) { return wecom.New(*c.WeCom, o.HTTP) })
	use(c.Webhook != nil, func() (notify.Channel, error) { return webhook.New(*c.Webhook, o.HTTP, o.Now) })
	use(c.Teams != nil, func() (notify.Channel, error) { return teams.New(*c.Teams, o.HTTP) })
	use(c.Email != nil, func() (notify.Channel, error) { return email.New(*c.Email, o.Now, nil) })
	use(c.PagerDuty != nil, func() (notify.Channel, error) { return pagerduty.New(*c.PagerDuty, o.HTTP) })
	use(c.Alertmanager != nil, func() (notify.Channel, error) { return alertmanager.New(*c.Alertmanager, o.HTTP, o.Now) })
	use(c.Telegram != nil, func() (notify.Channel, error) { return telegram.New(*c.Telegram, o.HTTP) })
	use(c.Discord != nil, func() (notify.Channel, error) { return discord.New(*c.Discord, o.HTTP) })
	if err == nil && n != 1 {
		err = fmt.Errorf("%d platforms are named, want one", n)
	}
	return ch, err
}

func (c *Channel) route(f *File) (r notify.Route, err error) {
	r = notify.Route{Kinds: c.Kinds, Teams: c.Team, Workloads: c.Workloads, Language: or(c.Language, f.Language, notify.English)}
	if r.Language != notify.English && r.Language != notify.Chinese {
		return r, fmt.Errorf("language: want %s or %s", notify.English, notify.Chinese)
	}
	if r.Least, err = notify.ParseSeverity(c.Severity); err != nil {
		return r, err
	}
	if r.Zone, err = time.LoadLocation(or(c.Timezone, f.Timezone, "UTC")); err != nil {
		return r, errors.New("timezone: not a name such as Asia/Shanghai")
	}
	for _, p := range c.Workloads {
		if _, err := filepath.Match(p, ""); err != nil {
			return r, errors.New("workloads: a pattern that is none")
		}
	}
	for _, k := range c.Kinds {
		if !slices.Contains(notify.Kinds, k) {
			return r, fmt.Errorf("kinds: there are %s", strings.Join(notify.Kinds, ", "))
		}
	}
	for _, d := range []struct {
		name, text string
		to         *time.Duration
	}{{"wait", c.Wait, &r.Wait}, {"again", c.Again, &r.Again}, {"repeat", c.Repeat, &r.Repeat}} {
		if d.text == "" {
			continue
		}
		if *d.to, err = time.ParseDuration(d.text); err != nil || *d.to <= 0 {
			return r, fmt.Errorf("%s: want a duration such as 10s or 4h", d.name)
		}
	}
	if c.Quiet != "" {
		from, until, ok := strings.Cut(c.Quiet, "-")
		a, err1 := hour(from)
		b, err2 := hour(until)
		if !ok || err1 != nil || err2 != nil {
			return r, errors.New("quiet: want hours such as 22:00-07:00")
		}
		r.Quiet = notify.Quiet{From: a, Until: b}
	}
	if c.Heartbeat != "" {
		h, err := hour(c.Heartbeat)
		if err != nil {
			return r, errors.New("heartbeat: want an hour such as 09:00")
		}
		r.Heartbeat, r.Hour = true, int(h.Hours())
	}
	return r, nil
}

func hour(s string) (time.Duration, error) {
	t, err := time.Parse("15:04", strings.TrimSpace(s))
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, err
}

func or(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
