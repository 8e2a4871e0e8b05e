package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"lowtide/functions/lowtide/admission"
	"lowtide/functions/lowtide/nats/accounts"
	"lowtide/functions/lowtide/relay"
	"lowtide/functions/rules"
	"lowtide/shared/bus"
	"lowtide/shared/fn"
	"lowtide/shared/store"
)

type relayFlags struct {
	nats, creds, ca, inbox            string
	fleet, prefix, region, metrics    string
	door, doorKeys, doorCert, doorKey string
	install, rules                    string
	accounts, targets                 []string
	concurrency                       map[string]int
	grace                             time.Duration
}

func relayCommand() *cobra.Command {
	f := relayFlags{}
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Beside NATS: hand messages on to Lambda functions",
		Long: "Stands beside NATS and invokes a Lambda function for each batch of messages that it hears, synchronously; a message is\n" +
			"done when its function has answered for it. Several relays share the work. On SIGTERM it takes nothing new and\n" +
			"waits for the invocations in flight.\n\n" +
			"Exit status: 0 stopped as told, 2 bad input or usage, 3 NATS or its streams are not there.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serveRelay(cmd.Context(), f) },
	}
	env := func(name, other string) string { return cmp.Or(os.Getenv(name), other) }
	cmd.Flags().StringVar(&f.nats, "nats", env("LOWTIDE_NATS_URL", nats.DefaultURL), "where NATS is (LOWTIDE_NATS_URL)")
	cmd.Flags().StringVar(&f.creds, "creds", os.Getenv("LOWTIDE_NATS_CREDS"), "file with the relay's NATS credentials (LOWTIDE_NATS_CREDS)")
	cmd.Flags().StringVar(&f.ca, "ca", "", "file with certificates that may have signed the server's; empty: the system's")
	cmd.Flags().StringVar(&f.inbox, "inbox", env("LOWTIDE_NATS_INBOX", accounts.Inbox("relay")), "prefix of the relay's inbox (LOWTIDE_NATS_INBOX)")
	cmd.Flags().StringVar(&f.fleet, "fleet", env("LOWTIDE_FLEET", "main"), "the fleet whose messages are handed on (LOWTIDE_FLEET)")
	cmd.Flags().StringVar(&f.prefix, "prefix", env("LOWTIDE_STACK", "lowtide")+"-", "what stands before a function's name at AWS: the stack's name and '-' (LOWTIDE_STACK)")
	cmd.Flags().StringVar(&f.region, "region", os.Getenv("AWS_REGION"), "AWS region of the functions (AWS_REGION)")
	cmd.Flags().StringSliceVar(&f.accounts, "account", split(os.Getenv("LOWTIDE_PLAN_ACCOUNTS")), "cloud/account whose plans are handed to provision; may be repeated (LOWTIDE_PLAN_ACCOUNTS)")
	cmd.Flags().StringSliceVar(&f.targets, "target", nil, "function=URL of an emulator instead of AWS; may be repeated, and then only these functions are served")
	cmd.Flags().StringToIntVar(&f.concurrency, "concurrency", nil, "function=N: invocations at once; a function that folds has one")
	cmd.Flags().StringVar(&f.metrics, "metrics", "127.0.0.1:9464", "where Prometheus reads metrics; empty: nowhere")
	cmd.Flags().StringVar(&f.door, "door", "", "where machines fetch their NATS user, such as :8443; empty: nowhere")
	cmd.Flags().StringVar(&f.doorKeys, "door-keys", "", "file of what admits machines (door.json of lowtide nats bootstrap)")
	cmd.Flags().StringVar(&f.doorCert, "door-cert", "", "the door's certificate in PEM")
	cmd.Flags().StringVar(&f.doorKey, "door-key", "", "and its key")
	cmd.Flags().StringVar(&f.install, "install", os.Getenv("LOWTIDE_INSTALL"), "the installation's id, for the door (LOWTIDE_INSTALL)")
	cmd.Flags().StringVar(&f.rules, "rules", os.Getenv("LOWTIDE_RULES_FILE"), "the rules file that the function rules has: what it hears is handed on; empty: none (LOWTIDE_RULES_FILE)")
	cmd.Flags().DurationVar(&f.grace, "grace", 25*time.Second, "how long invocations in flight may go on after a stop")
	return cmd
}

func split(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// target reads the emulators' addresses.
func (f relayFlags) target() (map[string]string, error) {
	out := map[string]string{}
	for _, t := range f.targets {
		name, url, ok := strings.Cut(t, "=")
		if !ok || !strings.HasPrefix(url, "http") {
			return nil, fmt.Errorf("--target %q: want function=http://host:port", t)
		}
		out[name] = url
	}
	return out, nil
}

// connect is a connection with the flags' credentials.
func (f relayFlags) connect() (*nats.Conn, error) {
	opts := bus.Options("relay", func(err error) { slog.Warn("nats", "err", err) })
	if f.creds != "" {
		opts = append(opts, nats.UserCredentials(f.creds))
	}
	if f.ca != "" {
		opts = append(opts, nats.RootCAs(f.ca))
	}
	if f.inbox != "" {
		opts = append(opts, nats.CustomInboxPrefix(f.inbox))
	}
	return nats.Connect(f.nats, opts...)
}

func serveRelay(ctx context.Context, f relayFlags) error {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	targets, err := f.target()
	if err != nil {
		return usage(err)
	}
	var own *rules.Set
	if f.rules != "" {
		// What rules hear is all that is asked of them here: their secrets are the function's.
		if own, err = readRulesAs(f.rules, func(string) (string, bool) { return "not-known-here", true }); err != nil {
			return err
		}
	}
	routes, err := relay.Routes(f.fleet, f.accounts, own)
	if err != nil {
		return usage(err)
	}
	if len(targets) > 0 { // emulators: who has none is not served, rather than asked for in vain
		routes = slices.DeleteFunc(routes, func(r relay.Route) bool { return targets[r.Goal()] == "" })
	}
	known := map[string]bool{}
	for i := range routes {
		known[routes[i].Name] = true
		if n, ok := f.concurrency[routes[i].Name]; ok {
			routes[i].Concurrency = n
		}
	}
	for name := range f.concurrency {
		if !known[name] {
			return usage(fmt.Errorf("--concurrency %s: there is no such function", name))
		}
	}
	var elsewhere relay.Invoke
	if len(targets) == 0 {
		if elsewhere, err = relay.Lambda(ctx, f.region, f.prefix, os.Getenv("AWS_ENDPOINT_URL")); err != nil {
			return usage(err)
		}
	}
	clock, err := fn.ParseClock(os.Getenv("LOWTIDE_CLOCK"))
	if err != nil {
		return usage(err)
	}
	nc, err := f.connect()
	if err != nil {
		return usage(fmt.Errorf("connect to NATS at %s: %w", f.nats, err))
	}
	defer nc.Close()
	waiting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := store.Guard(waiting, nc); err != nil {
		return nobody(err)
	}
	meter := relay.NewMeter()
	stop, err := serveMetrics(f.metrics, meter.Handler())
	if err != nil {
		return usage(err)
	}
	defer stop()
	shut, err := f.openDoor(waiting, nc, clock)
	if err != nil {
		return usage(fmt.Errorf("--door: %w", err))
	}
	defer shut()
	js, err := bus.JetStream(nc)
	if err != nil {
		return nobody(err)
	}
	quiet, err := handSecrets(ctx, nc, js, f.fleet, os.Getenv("LOWTIDE_SECRETS"))
	if err != nil {
		return nobody(err)
	}
	defer quiet()
	r := relay.New(nc, relay.Local(targets, elsewhere), routes, relay.Options{Fleet: f.fleet, Clock: clock, Grace: f.grace, Meter: meter})
	slog.Info("relay: ready", "nats", nc.ConnectedUrlRedacted(), "fleet", f.fleet, "functions", len(routes))
	if err := r.Serve(ctx); err != nil {
		return nobody(fmt.Errorf("relay: %w", err))
	}
	return nil
}

func serveMetrics(addr string, h http.Handler) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("metrics", "err", err)
		}
	}()
	return func() { srv.Close(); <-over }, nil
}

// openDoor serves the exchange of machines' tokens.
func (f relayFlags) openDoor(ctx context.Context, nc *nats.Conn, clock fn.Clock) (shut func(), err error) {
	if f.door == "" {
		return func() {}, nil
	}
	if f.install == "" {
		return nil, errors.New("the installation's id is needed (--install)")
	}
	keys, err := accounts.ReadDoor(f.doorKeys)
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(f.doorCert, f.doorKey)
	if err != nil {
		return nil, err
	}
	js, err := bus.JetStream(nc)
	if err != nil {
		return nil, err
	}
	states, err := store.Bind(ctx, js, fleetsBucket)
	if err != nil {
		return nil, err
	}
	joins, err := store.Bind(ctx, js, admission.Bucket)
	if err != nil {
		return nil, err
	}
	ln, err := tls.Listen("tcp", f.door, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/join", admission.New(f.fleet, f.install, keys, states, joins, time.Now, clock.Now, slog.Default()))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 30 * time.Second}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("door", "err", err)
		}
	}()
	return func() { srv.Close(); <-over }, nil
}
