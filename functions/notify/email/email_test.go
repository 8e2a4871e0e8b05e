package email_test

import (
	"bufio"
	"errors"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"strings"
	"sync"
	"testing"
	"time"

	"lowtide/functions/notify"
	"lowtide/functions/notify/email"
)

// post is a mail server that keeps what it is given, or refuses it.
type post struct {
	addr   string
	mu     sync.Mutex
	mails  []*mail.Message
	bodies []string
	refuse string // answer to RCPT
}

func serve(t *testing.T) *post {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &post{addr: ln.Addr().String()}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go p.talk(c)
		}
	}()
	return p
}

func (p *post) talk(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	say := func(s string) { _, _ = io.WriteString(c, s+"\r\n") }
	say("220 stand-in")
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		switch verb := strings.ToUpper(strings.Fields(line + " x")[0]); verb {
		case "EHLO", "HELO":
			say("250 stand-in")
		case "RCPT":
			p.mu.Lock()
			refuse := p.refuse
			p.mu.Unlock()
			if refuse != "" {
				say(refuse)
				continue
			}
			say("250 ok")
		case "DATA":
			say("354 go on")
			var text strings.Builder
			for {
				l, err := r.ReadString('\n')
				if err != nil {
					return
				}
				if l == ".\r\n" {
					break
				}
				text.WriteString(strings.TrimPrefix(l, "."))
			}
			p.keep(text.String())
			say("250 taken")
		case "QUIT":
			say("221 bye")
			return
		default:
			say("250 ok")
		}
	}
}

func (p *post) keep(text string) {
	m, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		return
	}
	body, _ := io.ReadAll(quotedprintable.NewReader(m.Body))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mails, p.bodies = append(p.mails, m), append(p.bodies, string(body))
}

func open(t *testing.T, p *post) notify.Channel {
	ch, err := email.New(email.Settings{Server: p.addr, From: "lowtide <bot@example.org>", To: []string{"ops@example.org", "二 <two@example.org>"}, TLS: "none"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func TestAnIncidentIsOneThread(t *testing.T) {
	p := serve(t)
	ch := open(t, p)
	m := notify.Message{
		ID: "f/12", Number: 12, Version: 1, Title: "#12 竞价实例被回收：1 台\r\nBcc: evil@example.org", Lines: []string{"train：第 40 步已保存", ".", strings.Repeat("长", 500)},
		Opened: time.Now(), Changed: time.Now(),
	}
	ref, err := ch.Send(t.Context(), m, "")
	if err != nil {
		t.Fatal(err)
	}
	m.Version, m.Closed = 2, true
	if _, err := ch.Send(t.Context(), m, ref); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mails) != 2 {
		t.Fatalf("%d mails", len(p.mails))
	}
	first, second := p.mails[0].Header, p.mails[1].Header
	if first.Get("Message-Id") != ref || second.Get("References") != ref || second.Get("In-Reply-To") != ref || second.Get("Message-Id") == ref {
		t.Errorf("not a thread: %v\n%v", first, second)
	}
	if first.Get("Bcc") != "" {
		t.Error("a line of the title became a header")
	}
	subject, err := new(mime.WordDecoder).DecodeHeader(first.Get("Subject"))
	if err != nil || !strings.Contains(subject, "竞价实例被回收：1 台") {
		t.Errorf("subject %q, %v", subject, err)
	}
	if !strings.Contains(p.bodies[0], "train：第 40 步已保存\r\n.\r\n") {
		t.Errorf("body %q", p.bodies[0])
	}
}

func TestAServersNoIsForGoodOrForLater(t *testing.T) {
	p := serve(t)
	ch := open(t, p)
	send := func() error { _, err := ch.Send(t.Context(), notify.Message{ID: "f/1", Title: "#1 a"}, ""); return err }
	p.refuse = "550 no such user"
	if err := send(); !errors.Is(err, notify.ErrSettings) {
		t.Errorf("550: got %v", err)
	}
	p.mu.Lock()
	p.refuse = "451 try later"
	p.mu.Unlock()
	var told notify.Wait
	if err := send(); !errors.As(err, &told) {
		t.Errorf("451: got %v", err)
	}
}

func TestAServerWithoutTLSGetsNoMailUnlessToldSo(t *testing.T) {
	p := serve(t)
	ch, err := email.New(email.Settings{Server: p.addr, From: "bot@example.org", To: []string{"ops@example.org"}}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.Send(t.Context(), notify.Message{ID: "f/1", Title: "#1 a"}, ""); err == nil {
		t.Error("a mail went out in the clear")
	}
}
