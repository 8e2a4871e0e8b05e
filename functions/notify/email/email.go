// Package email tells incidents by mail: one thread each, by Message-ID and References.
package email

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/smtp"
	"net/textproto"
	"strings"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/wire"
)

// Settings name server and people.
type Settings struct {
	Server   string   `yaml:"server"` // host:port
	User     string   `yaml:"user"`
	Password string   `yaml:"password"`
	From     string   `yaml:"from"`
	To       []string `yaml:"to"`
	TLS      string   `yaml:"tls"` // starttls (the default), implicit, none
}

// maxBytes bounds the text.
const maxBytes = 200_000

type channel struct {
	Settings
	host string
	from *mail.Address
	to   []*mail.Address
	wire wire.Client
	now  func() time.Time
	tls  *tls.Config
}

// New makes the channel. now and trust are nil but in tests.
func New(s Settings, now func() time.Time, trust *tls.Config) (notify.Channel, error) {
	if now == nil {
		now = time.Now
	}
	c := &channel{Settings: s, now: now, wire: wire.Client{Secrets: []string{s.Password}}}
	var err error
	if c.host, _, err = net.SplitHostPort(s.Server); err != nil {
		return nil, errors.New("email: server: want host:port")
	}
	if c.from, err = mail.ParseAddress(s.From); err != nil {
		return nil, errors.New("email: from: not an address")
	}
	for _, to := range s.To {
		a, err := mail.ParseAddress(to)
		if err != nil {
			return nil, errors.New("email: to: not an address")
		}
		c.to = append(c.to, a)
	}
	if len(c.to) == 0 {
		return nil, errors.New("email: to: nobody")
	}
	if s.TLS != "" && s.TLS != "starttls" && s.TLS != "implicit" && s.TLS != "none" {
		return nil, errors.New("email: tls: want starttls, implicit or none")
	}
	if s.TLS == "none" && s.Password != "" {
		return nil, errors.New("email: a password is not sent without TLS")
	}
	c.tls = trust.Clone()
	if c.tls == nil {
		c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	c.tls.ServerName = c.host
	return c, nil
}

// Traits: mails are not many.
func (c *channel) Traits() notify.Traits {
	return notify.Traits{Links: true, PerMinute: 6, Burst: 3}
}

// Send mails m, in the thread of ref if there is one.
func (c *channel) Send(ctx context.Context, m notify.Message, ref string) (string, error) {
	id := fmt.Sprintf("<%s.%d@lowtide>", strings.NewReplacer("/", ".", " ", "").Replace(m.ID), m.Version)
	if m.Kind == "heartbeat" {
		id = fmt.Sprintf("<heartbeat.%d@lowtide>", c.now().Unix())
	}
	text, err := c.write(m, id, ref)
	if err != nil {
		return ref, err
	}
	if err := c.deliver(ctx, text); err != nil {
		return ref, c.meaning(err)
	}
	if ref == "" {
		ref = id
	}
	return ref, nil
}

// write makes the mail. Header values come of words and are encoded, so no line of others' text starts a header.
func (c *channel) write(m notify.Message, id, ref string) ([]byte, error) {
	var to []string
	for _, a := range c.to {
		to = append(to, a.String())
	}
	subject := notify.Cut(m.Title, 200)
	if ref != "" && ref != id {
		subject = "Re: " + subject
	}
	var b bytes.Buffer
	head := func(k, v string) { fmt.Fprintf(&b, "%s: %s\r\n", k, v) }
	head("From", c.from.String())
	head("To", strings.Join(to, ", "))
	head("Subject", mime.QEncoding.Encode("utf-8", subject))
	head("Date", c.now().Format(time.RFC1123Z))
	head("Message-ID", id)
	if ref != "" && ref != id {
		head("In-Reply-To", ref)
		head("References", ref)
	}
	head("Auto-Submitted", "auto-generated")
	head("MIME-Version", "1.0")
	head("Content-Type", "text/plain; charset=utf-8")
	head("Content-Transfer-Encoding", "quoted-printable")
	b.WriteString("\r\n")
	title, lines := notify.Fit(m.Title, m.Lines, maxBytes, func(s string) int { return len(s) + 2 }, m.More)
	lines = append([]string{title, ""}, lines...)
	for _, a := range m.Actions {
		if a.URL != "" {
			lines = append(lines, a.Text+": "+a.URL)
		}
	}
	q := quotedprintable.NewWriter(&b)
	if _, err := q.Write([]byte(strings.Join(lines, "\r\n") + "\r\n")); err != nil {
		return nil, err
	}
	err := q.Close()
	return b.Bytes(), err
}

// deliver speaks SMTP once, within ctx.
func (c *channel) deliver(ctx context.Context, text []byte) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.Server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if d, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(d); err != nil {
			return err
		}
	}
	if c.TLS == "implicit" {
		conn = tls.Client(conn, c.tls)
	}
	s, err := smtp.NewClient(conn, c.host)
	if err != nil {
		return err
	}
	defer s.Close()
	if c.TLS == "" || c.TLS == "starttls" {
		if err := s.StartTLS(c.tls); err != nil {
			return err
		}
	}
	if c.Password != "" {
		if err := s.Auth(smtp.PlainAuth("", c.User, c.Password, c.host)); err != nil {
			return err
		}
	}
	if err := s.Mail(c.from.Address); err != nil {
		return err
	}
	for _, to := range c.to {
		if err := s.Rcpt(to.Address); err != nil {
			return err
		}
	}
	w, err := s.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = s.Quit() // the mail is taken
	return nil
}

// meaning: 4xx is later, 5xx for good (RFC 5321, 4.2.1).
func (c *channel) meaning(err error) error {
	said := c.wire.Said(err.Error(), nil)
	var code *textproto.Error
	if errors.As(err, &code) {
		if code.Code == 421 || code.Code == 450 || code.Code == 451 || code.Code == 452 {
			return notify.Wait{For: time.Minute}
		}
		if code.Code >= 500 {
			return fmt.Errorf("email: %s: %w", said, notify.ErrSettings)
		}
	}
	return fmt.Errorf("email: %s", said)
}
