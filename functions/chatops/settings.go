package chatops

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
)

// Settings are the file that says who may do what through which door. Values may name variables as ${NAME}.
type Settings struct {
	Listen   string             `yaml:"listen"`   // host:port
	Language string             `yaml:"language"` // of answers: en, zh-CN
	People   map[string]*Person `yaml:"people"`
	Slack    struct {
		Secret string `yaml:"signing_secret"`
	} `yaml:"slack"`
	Feishu struct {
		EncryptKey string `yaml:"encrypt_key"`
		Token      string `yaml:"verification_token"`
		App        string `yaml:"app"`    // with secret: answers to messages
		Secret     string `yaml:"secret"` // of the app
		API        string `yaml:"api"`
	} `yaml:"feishu"`
	DingTalk struct {
		Secret string `yaml:"app_secret"`
	} `yaml:"dingtalk"`
	Telegram struct {
		Secret string `yaml:"secret_token"`
	} `yaml:"telegram"`
	Discord struct {
		PublicKey string `yaml:"public_key"` // of the application, in hex
	} `yaml:"discord"`
	Links struct {
		Secret string `yaml:"secret"` // the same as in notify's file
	} `yaml:"links"`
	Alerts struct {
		Bearer string `yaml:"bearer"`
	} `yaml:"alerts"`
}

// Person is somebody who may do something. The person called link is whoever holds a signed link.
type Person struct {
	Slack    string  `yaml:"slack"`
	Feishu   string  `yaml:"feishu"` // open_id
	DingTalk string  `yaml:"dingtalk"`
	Telegram string  `yaml:"telegram"`
	Discord  string  `yaml:"discord"`
	Link     bool    `yaml:"link"`
	Role     string  `yaml:"role"`    // viewer, operator, admin
	Approve  float64 `yaml:"approve"` // highest plan, USD an hour; for an admin 0 is no bound, else nothing
}

func (p *Person) ids() map[string]string {
	out := map[string]string{}
	for via, id := range map[string]string{"slack": p.Slack, "feishu": p.Feishu, "dingtalk": p.DingTalk, "telegram": p.Telegram, "discord": p.Discord} {
		if id != "" {
			out[via] = id
		}
	}
	if p.Link {
		out["link"] = "link"
	}
	return out
}

func (p *Person) check() error {
	switch {
	case p == nil:
		return errors.New("nothing is said of them")
	case p.Role != "viewer" && p.Role != "operator" && p.Role != "admin":
		return errors.New("role: want viewer, operator or admin")
	case p.Approve < 0:
		return errors.New("approve: want 0 or more")
	}
	return nil
}

// person finds who asks; nil for somebody who is not known.
func (d *desk) person(r request) (string, *Person) {
	name, ok := d.names[r.via+"/"+r.user]
	if !ok {
		return "", nil
	}
	return name, d.People[name]
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// Parse reads the settings' text. Its errors name lines and fields and repeat no value.
func Parse(b []byte, env func(string) (string, bool)) (s Settings, err error) {
	if len(b) > maxBody || !utf8.Valid(b) {
		return s, errors.New("too large, or not UTF-8")
	}
	var missing []string
	text := variable.ReplaceAllStringFunc(string(b), func(ref string) string {
		name := variable.FindStringSubmatch(ref)[1]
		v, ok := env(name)
		if !ok {
			missing = append(missing, name)
		}
		if strings.ContainsAny(v, "\"\\\n\r'") {
			missing = append(missing, name+" (it holds a quote, a backslash or a line break)")
		}
		return v
	})
	if len(missing) > 0 {
		return s, fmt.Errorf("variable %s is not set, or cannot be used", strings.Join(missing, ", "))
	}
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("not YAML")
		}
	}()
	derr := yaml.NewDecoder(bytes.NewReader([]byte(text)), yaml.Strict(), yaml.DisallowUnknownField()).Decode(&s)
	if derr == nil || derr.Error() == "EOF" {
		return s, s.check()
	}
	var at yaml.Error
	if errors.As(derr, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
		return s, fmt.Errorf("line %d, column %d: an unknown field, or a value of another kind than belongs here", at.GetToken().Position.Line, at.GetToken().Position.Column)
	}
	return s, errors.New("not a settings file")
}

func (s Settings) check() error {
	if s.Language != "" && s.Language != "en" && s.Language != "zh-CN" {
		return errors.New("language: want en or zh-CN")
	}
	for name, p := range s.People {
		if err := p.check(); err != nil {
			return fmt.Errorf("people: %s: %w", name, err)
		}
	}
	if key, err := hex.DecodeString(s.Discord.PublicKey); s.Discord.PublicKey != "" && (err != nil || len(key) != ed25519.PublicKeySize) {
		return errors.New("discord: public_key: want the application's public key, 64 of 0-9 and a-f")
	}
	for name, secret := range map[string]string{
		"slack: signing_secret": s.Slack.Secret, "feishu: encrypt_key": s.Feishu.EncryptKey, "dingtalk: app_secret": s.DingTalk.Secret,
		"telegram: secret_token": s.Telegram.Secret, "links: secret": s.Links.Secret, "alerts: bearer": s.Alerts.Bearer,
	} {
		if secret != "" && len(secret) < 8 {
			return fmt.Errorf("%s: too short to be a secret", name)
		}
	}
	return nil
}
