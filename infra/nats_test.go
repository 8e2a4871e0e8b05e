package infra_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lowtide/events"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/lowtide/nats/natstest"
	"lowtide/functions/lowtide/relay"
	"lowtide/shared/bus"
	"lowtide/shared/fleet"
	"lowtide/shared/store"
)

const (
	fleetName = "main"
	install   = "0123456789ab"
)

// site is a NATS as infra/nats configures it: its own certificates, accounts and users, on the loopback.
type site struct {
	t       testing.TB
	dir     string // /etc/lowtide/nats
	keys    *accounts.Deployment
	servers []*server.Server
}

func users(t testing.TB) []accounts.User {
	t.Helper()
	consumers, err := relay.Consumers(fleetName, []string{"aws/123456789012"})
	if err != nil {
		t.Fatal(err)
	}
	return accounts.All(fleetName, consumers)
}

// newSite makes keys and certificates, and starts the servers of some of infra/nats's files.
func newSite(t testing.TB, files ...string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	var err error
	if s.keys, err = accounts.Bootstrap(s.dir, fleetName, install, users(t)); err != nil {
		t.Fatal(err)
	}
	certificates(t, s.dir)
	ports := map[string]string{}
	for i := range files {
		ports[fmt.Sprintf("nats-%d.lowtide.internal:6222", i+1)] = fmt.Sprint("127.0.0.1:", natstest.Port(t))
	}
	for i, f := range files {
		more := map[string]string{"0.0.0.0:6222": ports[fmt.Sprintf("nats-%d.lowtide.internal:6222", i+1)]}
		for name, addr := range ports {
			more[name] = addr
		}
		s.servers = append(s.servers, s.serve(f, more))
	}
	for _, srv := range s.servers {
		if !srv.ReadyForConnections(20 * time.Second) {
			t.Fatal("the server is not ready")
		}
	}
	if len(files) > 1 {
		until(t, 30*time.Second, "the cluster has a leader", func() bool {
			return slices.ContainsFunc(s.servers, func(srv *server.Server) bool { return srv.JetStreamIsLeader() }) &&
				!slices.ContainsFunc(s.servers, func(srv *server.Server) bool { return !srv.JetStreamIsCurrent() })
		})
	}
	return s
}

// serve starts a server of a configuration file, on the loopback and a free port, with its directories here.
func (s *site) serve(file string, more map[string]string) *server.Server {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "infra", "nats", file))
	if err != nil {
		s.t.Fatal(err)
	}
	text := string(b)
	for old, now := range more {
		text = strings.ReplaceAll(text, old, now)
	}
	text = strings.NewReplacer(
		"/etc/lowtide/nats", s.dir, "/var/lib/lowtide/nats", s.t.TempDir(), "0.0.0.0:4222", "127.0.0.1:-1", "0.0.0.0:7422", "127.0.0.1:-1",
		"http: 127.0.0.1:8222", "http: 127.0.0.1:-1",
	).Replace(text)
	conf := filepath.Join(s.dir, file)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		s.t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	srv, err := server.NewServer(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	srv.Start()
	s.t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	return srv
}

// url is where clients connect.
func (s *site) url() string {
	var all []string
	for _, srv := range s.servers {
		all = append(all, fmt.Sprint("tls://127.0.0.1:", srv.Addr().(*net.TCPAddr).Port))
	}
	return strings.Join(all, ",")
}

func (s *site) ca() string { return filepath.Join(s.dir, "ca.pem") }

// as connects as a user.
func (s *site) as(user string, opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	return s.with(s.keys.Creds(user), user, opts...)
}

func (s *site) with(creds, inbox string, opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	nc, err := nats.Connect(s.url(), append([]nats.Option{
		nats.UserCredentials(creds), nats.RootCAs(s.ca()), nats.CustomInboxPrefix(accounts.Inbox(inbox)),
	}, opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

// setup is lowtide nats setup.
func (s *site) setup(replicas int) jetstream.JetStream {
	s.t.Helper()
	nc := s.as("admin", bus.Options("admin", nil)...)
	js, err := bus.JetStream(nc)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := bus.Setup(s.t.Context(), js, replicas); err != nil {
		s.t.Fatal(err)
	}
	values, objects := accounts.Buckets()
	for _, name := range values {
		if _, err := store.Open(s.t.Context(), js, name, replicas); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, name := range objects {
		if _, err := store.OpenObjects(s.t.Context(), js, name, replicas); err != nil {
			s.t.Fatal(err)
		}
	}
	return js
}

// certificates makes ca.pem, cert.pem and key.pem.
func certificates(t testing.TB, dir string) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, own := key(), key()
	from, to := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	issuer := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: from, NotAfter: to,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, issuer, issuer, &ca.PublicKey, ca)
	if err != nil {
		t.Fatal(err)
	}
	write("ca.pem", "CERTIFICATE", der)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "nats"}, NotBefore: from, NotAfter: to,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if der, err = x509.CreateCertificate(rand.Reader, leaf, issuer, &own.PublicKey, ca); err != nil {
		t.Fatal(err)
	}
	write("cert.pem", "CERTIFICATE", der)
	if der, err = x509.MarshalECPrivateKey(own); err != nil {
		t.Fatal(err)
	}
	write("key.pem", "EC PRIVATE KEY", der)
}

// table is who says what, as the design has it; "-" are those whose programs are not functions on Lambda. A kind that it
// lacks is nobody's.
var table = map[events.Kind]string{
	"clock.ticked": "clock notify", "price.changed": "prices", "notice.received": "notices",
	"instance.interrupted": "notices agent", "instance.at_risk": "notices agent",
	"workload.submitted": "intake", "workload.changed": "chatops rules", "workload.withdrawn": "chatops rules", "workload.paused": "chatops rules", "workload.resumed": "chatops rules",
	"policy.set":        "census chatops", // census: the halt when machines of ours are nobody's
	"workload.accepted": "rebalance", "workload.refused": "rebalance intake", "plan.proposed": "rebalance", "plan.approved": "chatops", "plan.rejected": "chatops",
	"plan.made": "rebalance", "order.given": "rebalance",
	"instance.launched": "provision", "instance.ended": "provision census", "plan.failed": "provision relay",
	"machine.heard": "agent", "instance.ready": "agent", "workload.started": "agent", "workload.progressed": "agent", "workload.stopped": "agent",
	"workload.finished": "agent", "workload.failed": "agent", "checkpoint.saved": "agent", "checkpoint.failed": "agent",
	"benchmark.finished": "agent", "instance.verified": "verify", "instance.rejected": "verify",
	"alert.received": "chatops", "silence.set": "chatops", "person.acted": "chatops", "approval.refused": "rebalance",
	"rule.failed": "rules", "rule.acted": "rules", "webhook.asked": "rules", "workload.asked": "rules",
	"channel.failed": "notify", "channel.recovered": "notify", "checkpoint.asked": "chatops rules", "plan.asked": "chatops rules",
	"workload.idle": "usage", "workload.underused": "usage", "workload.busy": "usage", "workload.warned": "rebalance", "reservation.expiring": "rebalance", "reservation.idle": "rebalance", "change.refused": "rebalance", "workload.kept": "chatops",
	"instance.found": "census", "instance.lost": "census", "budget.warned": "ledger", "budget.exhausted": "ledger",
}

// writers are who writes each bucket; readers who may read it besides.
var (
	writers = map[string]string{
		"fleets": "rebalance", "market": "prices", "offers": "prices", "benchmarks": "verify", "claims": "provision", "census": "census", "ledger": "ledger", "joins": "relay",
		"usage": "usage", "notify": "notify", "chatops": "chatops", "rules": "rules",
	}
	readers = map[string]string{"market": "rebalance chatops rules", "claims": "census", "fleets": "relay chatops rules"}
)

// question is a subject, and who may publish on it: names with spaces between.
type question struct {
	subject string
	who     string
}

// later are who may have a kind delivered at a time to come: only ticks, and notify alone of any key, since its channels
// have names.
func later(kind events.Kind) string {
	if kind == "clock.ticked" {
		return "notify"
	}
	return ""
}

// questions are subjects of every sort.
func questions() (out []question) {
	for kind := range events.Kinds() {
		who, key := table[kind], "k" // a kind that the table lacks is nobody's to say
		if kind == "clock.ticked" {
			key = "tick"
		}
		out = append(out,
			question{bus.Subject(fleetName, kind, key), strings.ReplaceAll(who, "agent", "")}, // an agent's own keys are below
			question{bus.Subject("another", kind, key), ""},
			question{"later." + fleetName + "." + string(kind) + "." + key, later(kind)})
	}
	out = append(out,
		question{"lowtide.main.clock.ticked.wake", "clock rebalance notify"}, question{"later.main.clock.ticked.wake", "rebalance notify"},
		question{"lowtide.main.clock.ticked.rules", "clock rules notify"}, question{"later.main.clock.ticked.rules", "rules notify"},
		question{"later.main.clock.ticked.notify-ops", "notify"},
		question{"lowtide.main.a.kind.of.tomorrow", ""}, question{"telemetry.main.utilisation.measured.m", ""}, question{"elsewhere", ""},
		question{"$SYS.REQ.SERVER.PING", ""}, question{"_INBOX_rebalance.x", ""})
	for _, u := range []string{"clock", "notices", "rebalance", "verify"} {
		who := "relay"
		if u == "clock" || u == "notices" {
			who += " " + u
		}
		out = append(out, question{"dead." + u, who})
	}
	for b, writer := range writers {
		out = append(out,
			question{"$KV." + b + ".k", writer},
			question{"$JS.API.STREAM.INFO.KV_" + b, writer + " " + readers[b]}, question{"$JS.API.STREAM.MSG.GET.KV_" + b, writer + " " + readers[b]},
			question{"$JS.API.DIRECT.GET.KV_" + b + ".k", ""}, question{"$JS.API.STREAM.PURGE.KV_" + b, ""}, question{"$JS.API.STREAM.DELETE.KV_" + b, ""},
			question{"$JS.API.STREAM.MSG.DELETE.KV_" + b, ""}, question{"$JS.API.STREAM.UPDATE.KV_" + b, ""}, question{"$JS.API.STREAM.CREATE.KV_" + b, ""},
			question{"$JS.API.CONSUMER.CREATE.KV_" + b + ".x", ""}, question{"$JS.API.STREAM.SNAPSHOT.KV_" + b, ""})
	}
	for _, s := range []string{bus.Facts, bus.Telemetry, bus.Dead, bus.Advisories} {
		for _, op := range []string{"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.INFO", "STREAM.MSG.GET", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE", "STREAM.PEER.REMOVE", "CONSUMER.LIST"} {
			out = append(out, question{"$JS.API." + op + "." + s, ""})
		}
		out = append(out, question{"$JS.API.CONSUMER.CREATE." + s + ".mine", ""}, question{"$JS.API.CONSUMER.DELETE." + s + ".rebalance-main", ""})
	}
	for _, op := range []string{"CONSUMER.INFO.LOWTIDE_TELEMETRY.usage-main", "CONSUMER.MSG.NEXT.LOWTIDE.rules-main", "CONSUMER.MSG.NEXT.LOWTIDE.notify-channels-main", "CONSUMER.INFO.LOWTIDE.rebalance-main", "CONSUMER.CREATE.LOWTIDE.rebalance-main", "CONSUMER.MSG.NEXT.LOWTIDE.rebalance-main"} {
		out = append(out, question{"$JS.API." + op, "relay"})
	}
	return append(out, question{"$JS.ACK.LOWTIDE.rebalance-main.1.1.1.1.0", "relay"}, question{"$JS.ACK.LOWTIDE.mine.1.1.1.1.0", ""})
}

// refused publishes on subjects and tells which the server refused.
func refused(t testing.TB, connect func(...nats.Option) *nats.Conn, subjects []string) map[string]bool {
	t.Helper()
	var mu sync.Mutex
	got := map[string]bool{}
	nc := connect(nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if !errors.Is(err, nats.ErrPermissionViolation) {
			return
		}
		if _, rest, ok := strings.Cut(err.Error(), `Publish to "`); ok {
			mu.Lock()
			got[strings.SplitN(rest, `"`, 2)[0]] = true
			mu.Unlock()
		}
	}))
	for _, s := range subjects {
		if err := nc.Publish(s, []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.FlushTimeout(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	barrier(nc)
	mu.Lock()
	defer mu.Unlock()
	return got
}

// barrier waits for the callbacks that are queued.
func barrier(nc *nats.Conn) {
	done := make(chan struct{})
	if nc.Barrier(func() { close(done) }) == nil {
		<-done
	}
	time.Sleep(50 * time.Millisecond) // the error handler is called from a queue of its own, which has no barrier
}

func TestEveryUserMaySayWhatTheTableSaysAndNothingElse(t *testing.T) {
	s := newSite(t, "one.conf")
	s.setup(1)
	ask := questions()
	var subjects []string
	for _, q := range ask {
		subjects = append(subjects, q.subject)
	}
	n := 0
	for _, u := range users(t) {
		if u.Name == "admin" || u.Name == "leaf" {
			continue
		}
		no := refused(t, func(o ...nats.Option) *nats.Conn { return s.as(u.Name, o...) }, subjects)
		for _, q := range ask {
			n++
			if may := slices.Contains(strings.Fields(q.who), u.Name); may == no[q.subject] {
				t.Errorf("%s on %s: refused %v, want %v", u.Name, q.subject, no[q.subject], !may)
			}
		}
	}
	t.Logf("%d pairs of user and subject asked of the server", n)
}

func TestEveryUserHearsNothingButAnswersToItself(t *testing.T) {
	s := newSite(t, "one.conf")
	for _, u := range users(t) {
		if u.Name == "admin" || u.Name == "leaf" {
			continue
		}
		for subject, may := range map[string]bool{
			">": false, "lowtide.>": false, "lowtide.main.order.given.>": false, "$KV.>": false, "_INBOX.>": false, "_INBOX_" + u.Name + ".>": true,
			"_INBOX_other.>": false, "$JS.EVENT.>": false, "dead.>": false,
		} {
			heard := make(chan error, 8)
			nc := s.as(u.Name, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { heard <- err }))
			if _, err := nc.SubscribeSync(subject); err != nil {
				t.Fatal(err)
			}
			if err := nc.Flush(); err != nil {
				t.Fatal(err)
			}
			barrier(nc)
			var err error
			select {
			case err = <-heard:
			default:
			}
			if errors.Is(err, nats.ErrPermissionViolation) == may {
				t.Errorf("%s hears %s: %v, want allowed %v", u.Name, subject, err, may)
			}
			nc.Close()
		}
	}
}

func TestAMachineSpeaksForItselfAloneAndOnlyForAnHour(t *testing.T) {
	s := newSite(t, "one.conf")
	js := s.setup(1)
	creds, err := s.keys.Machine("main-m7", "train-7", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.creds")
	if err := os.WriteFile(file, creds, 0o600); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{ // subject to whether it may
		"$JS.API.STREAM.MSG.GET.LOWTIDE": false, "$JS.API.CONSUMER.CREATE.LOWTIDE.agent-main-main-m7": false,
		"$JS.API.CONSUMER.CREATE.LOWTIDE.agent-main-main-m7.lowtide.main.order.given.main-m7": true,
		"$JS.API.CONSUMER.CREATE.LOWTIDE.agent-main-main-m7.lowtide.main.order.given.main-m8": false,
		"$JS.API.CONSUMER.CREATE.LOWTIDE.agent-main-main-m8.lowtide.main.order.given.main-m8": false,
		"$JS.API.CONSUMER.MSG.NEXT.LOWTIDE.agent-main-main-m7":                                true, "$JS.API.CONSUMER.MSG.NEXT.LOWTIDE.rebalance-main": false,
		"$KV.fleets.main": false, "dead.agent": false, "telemetry.main.utilisation.measured.main-m7": true, "telemetry.main.utilisation.measured.main-m8": false,
	}
	for kind, who := range table {
		agents := slices.Contains(strings.Fields(who), "agent")
		own := "main-m7"
		if strings.HasPrefix(string(kind), "workload.") || strings.HasPrefix(string(kind), "checkpoint.") {
			own = "train-7"
		}
		want[bus.Subject(fleetName, kind, own)] = agents
		want[bus.Subject(fleetName, kind, "another")] = false
		want[bus.Subject("another", kind, own)] = false
	}
	var subjects []string
	for subject := range want {
		subjects = append(subjects, subject)
	}
	no := refused(t, func(o ...nats.Option) *nats.Conn { return s.with(file, "main-m7", o...) }, subjects)
	for subject, may := range want {
		if no[subject] == may {
			t.Errorf("%s: refused %v, want %v", subject, no[subject], !may)
		}
	}
	// Its orders reach it, by its own consumer.
	if _, err := bus.Publish(t.Context(), js, events.New(fleetName, "rebalance", time.Now(), events.OrderGiven{Machine: "main-m7", Order: fleet.Order{Number: 3}})); err != nil {
		t.Fatal(err)
	}
	nc := s.with(file, "main-m7")
	own, err := bus.JetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	con, err := own.CreateOrUpdateConsumer(t.Context(), bus.Facts, jetstream.ConsumerConfig{
		Durable: "agent-main-main-m7", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: bus.Subject(fleetName, "order.given", "main-m7"),
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := con.Next(jetstream.FetchMaxWait(5 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DoubleAck(t.Context()); err != nil {
		t.Error(err)
	}
	old, err := s.keys.Machine("main-m7", "train-7", time.Now().Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect(s.url(), nats.UserCredentials(file), nats.RootCAs(s.ca())); err == nil {
		nc.Close()
		t.Error("an agent whose hour is over was let in")
	}
}

func TestKeysRotateWithoutAMomentInWhichNeitherIsGood(t *testing.T) {
	s := newSite(t, "one.conf")
	old, err := os.ReadFile(s.keys.Creds("verify"))
	if err != nil {
		t.Fatal(err)
	}
	before := filepath.Join(t.TempDir(), "old.creds")
	if err := os.WriteFile(before, old, 0o600); err != nil {
		t.Fatal(err)
	}
	good := func(creds string) bool {
		nc, err := nats.Connect(s.url(), nats.UserCredentials(creds), nats.RootCAs(s.ca()))
		if err == nil {
			nc.Close()
		}
		return err == nil
	}
	if err := s.keys.Revoke(time.Now()); err == nil {
		t.Error("revoked what was never rotated")
	}
	time.Sleep(1100 * time.Millisecond) // JWTs carry the second in which they were issued: the next is another
	if err := s.keys.Rotate(users(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.keys.Rotate(users(t)); err == nil {
		t.Error("rotated twice: the keys in between would never be revoked")
	}
	if !good(before) || !good(s.keys.Creds("verify")) {
		t.Error("after the rotation one of the two keys is not good")
	}
	again, err := accounts.Open(s.dir) // by another run of the command
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Revoke(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := s.servers[0].Reload(); err != nil {
		t.Fatal(err)
	}
	if good(before) || !good(s.keys.Creds("verify")) {
		t.Error("after the revocation the old key is still good, or the new one is not")
	}
	if _, err := accounts.Bootstrap(s.dir, fleetName, install, users(t)); !errors.Is(err, accounts.ErrExists) {
		t.Errorf("bootstrap over a deployment: %v, want ErrExists", err)
	}
	if err := filepath.Walk(s.dir, func(p string, info os.FileInfo, err error) error {
		if strings.HasSuffix(p, ".seed") && info.Mode().Perm() != 0o600 {
			t.Errorf("%s may be read by others: %v", p, info.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(s.dir, accounts.ServerDoc))
	if err != nil || bytes.Contains(doc, []byte("SU")) && bytes.Contains(doc, []byte("seed")) {
		t.Errorf("what servers include holds a seed, or cannot be read: %v", err)
	}
}

func TestASiteElsewhereJoinsByALeafNode(t *testing.T) {
	hub := newSite(t, "one.conf")
	js := hub.setup(1)
	account := ""
	doc, err := os.ReadFile(filepath.Join(hub.dir, accounts.ServerDoc))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(doc), "\n") { // the second account is LOWTIDE
		if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "A") {
			account = strings.TrimSuffix(f[0], ":")
		}
	}
	t.Setenv("LOWTIDE_ACCOUNT", account)
	creds, err := os.ReadFile(hub.keys.Creds("leaf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(hub.dir, "leaf.creds"), creds, 0o600); err != nil {
		t.Fatal(err)
	}
	varz, err := hub.servers[0].Varz(nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf := hub.serve("leaf.conf", map[string]string{"nats.lowtide.internal:7422": fmt.Sprint("127.0.0.1:", varz.LeafNode.Port)})
	until(t, 20*time.Second, "the leaf has joined", func() bool { return leaf.NumLeafNodes() == 1 })
	machine, err := hub.keys.Machine("main-m1", "train-7", time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.creds")
	if err := os.WriteFile(file, machine, 0o600); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(fmt.Sprint("tls://127.0.0.1:", leaf.Addr().(*net.TCPAddr).Port), nats.UserCredentials(file), nats.RootCAs(hub.ca()),
		nats.CustomInboxPrefix(accounts.Inbox("main-m1")))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	there, err := bus.JetStream(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := bus.Publish(ctx, there, events.New(fleetName, "agent/main-m1", time.Now(), events.InstanceReady{Machine: "main-m1"})); err != nil {
		t.Fatal(err)
	}
	if m, err := bus.Last(ctx, js, bus.Facts, bus.Subject(fleetName, "instance.ready", "main-m1")); err != nil {
		t.Errorf("the hub's stream holds %+v, %v", m, err)
	}
}

// A snapshot of the disk, restored on new servers with the same configuration: what was acknowledged is there, for the same
// users.
func TestACopyOfTheDiskIsABackup(t *testing.T) {
	s := newSite(t, "one.conf")
	js := s.setup(1)
	b, err := store.Bind(t.Context(), js, "fleets")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(t.Context(), fleetName, []byte("state")); err != nil {
		t.Fatal(err)
	}
	if _, err := bus.Publish(t.Context(), js, events.New(fleetName, "agent", time.Now(), events.InstanceReady{Machine: "m"})); err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	old := s.servers[0].StoreDir() // while it runs, as a snapshot is taken
	if err := os.CopyFS(filepath.Join(copied, "jetstream"), os.DirFS(old)); err != nil {
		t.Fatal(err)
	}
	s.servers[0].Shutdown()
	s.servers[0].WaitForShutdown()
	s.servers = []*server.Server{s.serve("one.conf", map[string]string{"/var/lib/lowtide/nats": copied})}
	if !s.servers[0].ReadyForConnections(20 * time.Second) {
		t.Fatal("the restored server is not ready")
	}
	again, err := bus.JetStream(s.as("rebalance", bus.Options("rebalance", nil)...))
	if err != nil {
		t.Fatal(err)
	}
	restored, err := store.Bind(t.Context(), again, "fleets")
	if err != nil {
		t.Fatal(err)
	}
	if v, _, err := restored.Get(t.Context(), fleetName); err != nil || string(v) != "state" {
		t.Errorf("the state is %q, %v", v, err)
	}
	admin := s.setup(1) // lowtide nats setup after a restore changes nothing
	if _, err := bus.Last(t.Context(), admin, bus.Facts, bus.Subject(fleetName, "instance.ready", "m")); err != nil {
		t.Error(err)
	}
}
