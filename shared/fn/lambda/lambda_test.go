package lambda_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	embedded "lowtide/functions/lowtide/nats"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	"lowtide/shared/fn/lambda"
	"lowtide/shared/store"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// settings of a function beside a server that listens.
func settings(s *embedded.Server, addr string) lambda.Settings {
	return lambda.Settings{
		NATS: "nats://" + s.Token() + "@" + addr, Fleet: "f", Timeout: 5 * time.Second, Getenv: func(string) string { return "" },
	}
}

// address is where a server listens.
func address(t *testing.T, s *embedded.Server) string {
	t.Helper()
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// host serves handlers in this process.
func host(t *testing.T, set lambda.Settings, handlers lambda.Handlers) *lambda.Host {
	t.Helper()
	h, err := lambda.New("x", set, func(context.Context, *lambda.Host) (lambda.Handlers, error) { return handlers, nil }, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func beat(n uint64) events.Event {
	return events.New("f", "test", time.Time{}, events.MachineHeard{Machine: "m", Beat: n})
}

// batch is what the relay sends of beats, by their position.
func batch(t *testing.T, seqs ...uint64) []byte {
	t.Helper()
	in := lambda.Batch{Lowtide: lambda.Version, Function: "x"}
	for _, n := range seqs {
		body, err := events.Encode(beat(n))
		if err != nil {
			t.Fatal(err)
		}
		in.Messages = append(in.Messages, lambda.Message{Stream: bus.Facts, Seq: n, At: time.Now(), Attempt: 1, Body: body})
	}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func invoke(t *testing.T, h *lambda.Host, payload []byte) lambda.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out, err := h.Invoke(ctx, payload)
	if err != nil {
		t.Fatal(err)
	}
	var a lambda.Answer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// stored counts the messages of a subject.
func stored(t *testing.T, js jetstream.JetStream, stream, subject string) int {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range info.State.Subjects {
		n += int(c)
	}
	return n
}

func hear(handle func(context.Context, events.MachineHeard) ([]events.Event, error)) fn.Function {
	return fn.New("x", fn.Hear(handle))
}

func tick(what any) events.Event {
	return events.New("f", "x", time.Time{}, events.ClockTicked{What: fmt.Sprint(what)})
}

func TestOfABatchEachMessageIsAnsweredFor(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	_, js := natstest.Connect(t, s)
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Function: hear(func(_ context.Context, e events.MachineHeard) ([]events.Event, error) {
		switch e.Beat {
		case 2:
			return nil, errors.New("poison")
		case 3:
			return nil, fmt.Errorf("read: %w", store.ErrConflict)
		case 4:
			return nil, fmt.Errorf("%w: not ours", fn.ErrDead)
		case 5:
			panic("nil map")
		}
		return []events.Event{tick(e.Beat)}, nil
	})})
	a := invoke(t, h, batch(t, 1, 2, 3, 4, 5, 6))
	if fmt.Sprint(a.Handled) != "[1 6]" || len(a.Failed) != 4 {
		t.Fatalf("answer %+v, want 1 and 6 handled", a)
	}
	for i, want := range []struct {
		seq           uint64
		passing, dead bool
	}{{2, false, false}, {3, true, false}, {4, false, true}, {5, false, false}} {
		f := a.Failed[i]
		if f.Seq != want.seq || f.Passing != want.passing || f.Dead != want.dead || f.Why == "" {
			t.Errorf("failed %+v, want %+v", f, want)
		}
		if errors.Is(f.Err(), fn.ErrDead) != want.dead || errors.Is(f.Err(), fn.ErrPassing) != want.passing {
			t.Errorf("%+v reads as %v", f, f.Err())
		}
	}
	if n := stored(t, js, bus.Facts, "lowtide.f.clock.ticked.>"); n != 2 {
		t.Errorf("%d facts stored, want what the handled ones said", n)
	}
}

func TestAFoldIsHandledWholeOrNotAtAll(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	bad := false
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Function: fn.Fold("x", 8, []events.Kind{"machine.heard"},
		func(_ context.Context, in []fn.Delivery) ([]events.Event, error) {
			if bad {
				return nil, errors.New("not saved")
			}
			return nil, nil
		})})
	if a := invoke(t, h, batch(t, 1, 2, 3)); len(a.Handled) != 3 || len(a.Failed) > 0 {
		t.Errorf("answer %+v, want all", a)
	}
	bad = true
	if a := invoke(t, h, batch(t, 4, 5)); len(a.Handled) > 0 || len(a.Failed) != 2 {
		t.Errorf("answer %+v, want none", a)
	}
}

func TestAFoldWhoseStateAnotherEnvironmentWroteReadsItAgainAtOnce(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	tries := 0
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Function: fn.Fold("x", 8, []events.Kind{"machine.heard"},
		func(context.Context, []fn.Delivery) ([]events.Event, error) {
			if tries++; tries == 1 {
				return nil, fmt.Errorf("save: %w", store.ErrConflict)
			}
			return nil, nil
		})})
	if a := invoke(t, h, batch(t, 1, 2)); len(a.Handled) != 2 || tries != 2 {
		t.Errorf("answer %+v after %d tries, want all after two", a, tries)
	}
}

func TestWhatIsNotForThisFunctionIsRefused(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Function: hear(func(context.Context, events.MachineHeard) ([]events.Event, error) { return nil, nil })})
	for _, payload := range []string{
		`{}`, `null`, `"x"`, `{"lowtide":1,"function":"another","messages":[]}`, `{"lowtide":9,"function":"x","messages":[]}`,
		`{"lowtide":1,"function":"x","messages":"all"}`, `{"requestContext":{"http":{"method":"GET"}}}`,
	} {
		if out, err := h.Invoke(t.Context(), []byte(payload)); err == nil {
			t.Errorf("%s: answered %s", payload, out)
		}
	}
}

func TestADocumentThatComesDirectlyIsStoredBeforeTheAnswer(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	_, js := natstest.Connect(t, s)
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Direct: func(_ context.Context, raw []byte) ([]events.Event, error) {
		if strings.Contains(string(raw), "garbage") {
			return nil, fmt.Errorf("%w: garbage", fn.ErrDead)
		}
		return []events.Event{tick("direct")}, nil
	}})
	if a := invoke(t, h, []byte(`{"detail-type":"x"}`)); a.Said != 1 {
		t.Errorf("answer %+v, want one fact said", a)
	}
	m, err := bus.Last(t.Context(), js, bus.Facts, "lowtide.f.clock.ticked.direct")
	if err != nil {
		t.Fatal(err)
	}
	if m.Event.Data.(events.ClockTicked).What != "direct" {
		t.Errorf("stored %+v", m.Event)
	}
	invoke(t, h, []byte(`{"garbage":1}`))
	invoke(t, h, []byte(`{"garbage":1}`)) // EventBridge delivers at least once
	if n := stored(t, js, bus.Dead, "dead.>"); n != 1 {
		t.Errorf("%d dead letters, want one with the bytes", n)
	}
}

func TestAURLGivesTheBytesThatWereSent(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	_, js := natstest.Connect(t, s)
	var got lambda.Request
	h := host(t, settings(s, address(t, s)), lambda.Handlers{URL: func(_ context.Context, r lambda.Request) (lambda.Response, []events.Event, error) {
		got = r
		if r.Path == "/broken" {
			return lambda.Response{}, nil, errors.New("secret inside")
		}
		return lambda.Response{Status: http.StatusAccepted}, []events.Event{tick("url")}, nil
	}})
	ask := func(payload string) (int, string) {
		out, err := h.Invoke(t.Context(), []byte(payload))
		if err != nil {
			t.Fatal(err)
		}
		var a struct {
			StatusCode int
			Body       string
		}
		if err := json.Unmarshal(out, &a); err != nil {
			t.Fatal(err)
		}
		return a.StatusCode, a.Body
	}
	for _, payload := range []string{
		`{"rawPath":"/vast","rawQueryString":"a=b","headers":{"X-Vast-Timestamp":"1"},"body":"{\"a\":1}","requestContext":{"http":{"method":"POST"}}}`,
		`{"rawPath":"/vast","rawQueryString":"a=b","headers":{"x-vast-timestamp":"1"},"body":"eyJhIjoxfQ==","isBase64Encoded":true,"requestContext":{"http":{"method":"POST"}}}`,
	} {
		if code, _ := ask(payload); code != http.StatusAccepted {
			t.Errorf("status %d, want 202", code)
		}
		if string(got.Body) != `{"a":1}` || got.Method != "POST" || got.Path != "/vast" || got.Query != "a=b" || got.Header["x-vast-timestamp"] != "1" {
			t.Errorf("got %+v", got)
		}
	}
	if n := stored(t, js, bus.Facts, "lowtide.f.clock.ticked.url"); n != 1 {
		t.Errorf("%d stored, want one: the second is a repeat", n)
	}
	if code, body := ask(`{"rawPath":"/broken","requestContext":{"http":{"method":"GET"}}}`); code != http.StatusServiceUnavailable || strings.Contains(body, "secret") {
		t.Errorf("status %d, %q; want 503 and nothing of the inside", code, body)
	}
}

func TestADeadlineThatIsMissingOrNowIsReplacedByTheConfiguredTime(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	var left time.Duration
	h := host(t, settings(s, address(t, s)), lambda.Handlers{Direct: func(ctx context.Context, _ []byte) ([]events.Event, error) {
		end, _ := ctx.Deadline()
		left = time.Until(end)
		return nil, ctx.Err()
	}})
	for name, c := range map[string]struct {
		in        time.Duration // until the runtime's deadline; 0: none
		least, up time.Duration
	}{
		"None":     {0, 3 * time.Second, 5 * time.Second},
		"Now":      {time.Millisecond, 3 * time.Second, 5 * time.Second},
		"InAWhile": {20 * time.Second, 18 * time.Second, 18600 * time.Millisecond}, // less what the end of it needs
		"Soon":     {time.Second, 700 * time.Millisecond, 810 * time.Millisecond},
	} {
		ctx := context.Background()
		if c.in > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.in)
			defer cancel()
		}
		if _, err := h.Invoke(ctx, []byte(`{}`)); err != nil || left < c.least || left > c.up {
			t.Errorf("%s: %v left, %v; want %v to %v", name, left, err, c.least, c.up)
		}
	}
}

// proxy stands between a function and its server.
type proxy struct {
	net.Listener
	to   string
	hole atomic.Bool // what was open before is a black hole: no byte passes, and no reset comes

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, to: to}
	t.Cleanup(func() { l.Close(); p.reset() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.pass(c)
		}
	}()
	return p
}

func (p *proxy) pass(c net.Conn) {
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		c.Close()
		return
	}
	swallow := &atomic.Bool{}
	p.mu.Lock()
	p.conns = append(p.conns, c, up, holed{nil, swallow})
	p.mu.Unlock()
	for _, way := range [][2]net.Conn{{c, up}, {up, c}} {
		go func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := way[0].Read(buf)
				if err != nil {
					if !swallow.Load() {
						way[1].Close()
					}
					return
				}
				if !swallow.Load() {
					_, _ = way[1].Write(buf[:n])
				}
			}
		}()
	}
}

type holed struct {
	net.Conn
	swallow *atomic.Bool
}

// blackHole makes all present connections silent; new ones pass.
func (p *proxy) blackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if h, ok := c.(holed); ok {
			h.swallow.Store(true)
		}
	}
}

// reset closes all present connections.
func (p *proxy) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		if _, ok := c.(holed); !ok {
			c.Close()
		}
	}
	p.conns = nil
}

func TestTheNextInvocationAfterTheConnectionDiedSucceedsWithinHalfASecond(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	p := newProxy(t, address(t, s))
	n := 0
	h := host(t, settings(s, p.Addr().String()), lambda.Handlers{Direct: func(context.Context, []byte) ([]events.Event, error) {
		n++
		return []events.Event{tick(n)}, nil
	}})
	invoke(t, h, []byte(`{}`))
	for name, kill := range map[string]func(){"BlackHole": p.blackHole, "Reset": p.reset, "Nothing": func() {}} {
		for range 3 {
			kill()
			began := time.Now()
			if a := invoke(t, h, []byte(`{}`)); a.Said != 1 {
				t.Fatalf("%s: %+v", name, a)
			}
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("%s: the invocation took %v, want 500 ms at most", name, took)
			} else {
				t.Logf("%s: %v", name, took.Round(time.Millisecond))
			}
		}
	}
}

func TestAConnectionThatDiesWithinAnInvocationIsReplaced(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	p := newProxy(t, address(t, s))
	h := host(t, settings(s, p.Addr().String()), lambda.Handlers{Direct: func(context.Context, []byte) ([]events.Event, error) {
		p.blackHole()
		return []events.Event{tick("x")}, nil
	}})
	began := time.Now()
	if a := invoke(t, h, []byte(`{}`)); a.Said != 1 || time.Since(began) > 4*time.Second {
		t.Errorf("%+v after %v, want the fact stored within 4 s", a, time.Since(began))
	}
}

func TestAFunctionThatStartsBeforeNATSWaitsForIt(t *testing.T) {
	s, err := embedded.Start(t.TempDir(), embedded.Options{Listen: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	_, js := natstest.Connect(t, s)
	if err := bus.Setup(t.Context(), js, 1); err != nil {
		t.Fatal(err)
	}
	set := settings(s, address(t, s))
	s.Shutdown()
	made := 0
	h, err := lambda.New("x", set, func(ctx context.Context, h *lambda.Host) (lambda.Handlers, error) {
		made++
		if _, err := h.Bucket(ctx, "b"); err != nil {
			return lambda.Handlers{}, err
		}
		return lambda.Handlers{Direct: func(context.Context, []byte) ([]events.Event, error) { return []events.Event{tick("x")}, nil }}, nil
	}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(t.Context(), js, "b", 1); err != nil {
		t.Fatal(err)
	}
	if a := invoke(t, h, []byte(`{}`)); a.Said != 1 || made != 2 {
		t.Errorf("%+v, made %d times; want the second to succeed", a, made)
	}
}

func TestABucketThatIsNotThereIsNotMade(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	_, js := natstest.Connect(t, s)
	h := host(t, settings(s, address(t, s)), lambda.Handlers{})
	if _, err := h.Bucket(t.Context(), "fleets"); err == nil {
		t.Error("bound")
	}
	if _, err := js.Stream(t.Context(), "KV_fleets"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("the stream: %v, want none", err)
	}
}

func TestABadEnvironmentIsRefusedInOneLine(t *testing.T) {
	good := map[string]string{"LOWTIDE_NATS_URL": "nats://x", "LOWTIDE_FLEET": "f"}
	for name, c := range map[string]struct {
		set  map[string]string
		want string
	}{
		"NoURL":      {map[string]string{"LOWTIDE_NATS_URL": ""}, "LOWTIDE_NATS_URL"},
		"NoFleet":    {map[string]string{"LOWTIDE_FLEET": ""}, "LOWTIDE_FLEET"},
		"Timeout":    {map[string]string{"LOWTIDE_TIMEOUT": "soon"}, "LOWTIDE_TIMEOUT"},
		"Clock":      {map[string]string{"LOWTIDE_CLOCK": "x"}, "LOWTIDE_CLOCK"},
		"Accounts":   {map[string]string{"LOWTIDE_ACCOUNTS": "aws=main"}, "LOWTIDE_ACCOUNTS"},
		"TwoSecrets": {map[string]string{"LOWTIDE_NATS_CREDS": "a", "LOWTIDE_NATS_SECRET": "b"}, "which one"},
	} {
		_, err := lambda.FromEnv(func(k string) string {
			if v, ok := c.set[k]; ok {
				return v
			}
			return good[k]
		})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want a line with %s", name, err, c.want)
		}
	}
	s, err := lambda.FromEnv(func(k string) string { return good[k] })
	if err != nil || !s.Dry {
		t.Errorf("%+v, %v; want a dry run unless it is told otherwise", s, err)
	}
}

func TestSettingsOfCloudsLieOnTopOfTheEnvironment(t *testing.T) {
	s := natstest.Start(t, embedded.Options{Listen: true})
	set := settings(s, address(t, s))
	env := map[string]string{"A": "1", "B": "2", "LOWTIDE_CLOUDS": "# keys\nB=3\n\nC=x=y\n"}
	set.Getenv = func(k string) string { return env[k] }
	h := host(t, set, lambda.Handlers{})
	get, err := h.Env(t.Context())
	if err != nil || get("A")+get("B")+get("C") != "13x=y" {
		t.Errorf("reads %v, want what lies on top: %v", get != nil, err)
	}
	env["LOWTIDE_CLOUDS"] = "B"
	if _, err := h.Env(t.Context()); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("%v, want the line that is wrong", err)
	}
}

func TestASecretIsReadWithASignedRequestAndWithTheServersClock(t *testing.T) {
	for name, c := range map[string]struct{ secret, target, service, answer string }{
		"SecretsManager": {"arn:aws:secretsmanager:us-east-1:000000000000:secret:lowtide/x-AbCdEf", "secretsmanager.GetSecretValue", "/us-east-1/secretsmanager/", `{"SecretString":"line one"}`},
		"SSM":            {"/lowtide/x", "AmazonSSM.GetParameter", "/us-east-1/ssm/", `{"Parameter":{"Value":"line one"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			ahead := time.Now().Add(6 * time.Minute)
			var dates []string
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Header.Get("X-Amz-Target") != c.target || !strings.Contains(r.Header.Get("Authorization"), c.service) || !strings.Contains(string(body), c.secret) ||
					r.Header.Get("X-Amz-Security-Token") != "session" {
					t.Errorf("asked %v with %s", r.Header, body)
				}
				w.Header().Set("Date", ahead.UTC().Format(http.TimeFormat))
				dates = append(dates, r.Header.Get("X-Amz-Date"))
				if len(dates) == 1 {
					w.WriteHeader(http.StatusForbidden)
					_, _ = io.WriteString(w, `{"__type":"InvalidSignatureException","message":"Signature expired"}`)
					return
				}
				_, _ = io.WriteString(w, c.answer)
			}))
			defer srv.Close()
			env := map[string]string{
				"LOWTIDE_X_SECRET": c.secret, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": srv.URL,
				"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "not-a-key", "AWS_SESSION_TOKEN": "session",
			}
			s := natstest.Start(t, embedded.Options{Listen: true})
			set := settings(s, address(t, s))
			set.Getenv = func(k string) string { return env[k] }
			got, err := host(t, set, lambda.Handlers{}).Setting(t.Context(), "LOWTIDE_X")
			if err != nil || got != "line one" {
				t.Fatalf("read %q, %v", got, err)
			}
			if want := ahead.UTC().Format("20060102T1504"); len(dates) != 2 || !strings.HasPrefix(dates[1], want) {
				t.Errorf("signed at %v, want the second at the server's %s", dates, want)
			}
		})
	}
}
