package agent

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"lowtide/shared/fn"
)

// Settings are what a machine's user-data tells its agent.
type Settings struct {
	Config
	Dir           string   // of the machine: what must outlive the agent
	NATS          string   // address of the servers
	Token         string   // for NATS
	Bucket        string   // URL of the checkpoints
	Key           []byte   // of the checkpoints, 16 bytes or more
	Metadata      string   // URL of the cloud's own notices; "": none
	MetadataToken string   // URL of the metadata service's tokens; "": it asks for none
	Bench         Proof    // the benchmark runner; none: benchmarks fail with that cause
	Scrape        string   // URL of an exporter's page on the GPUs' use; "": NVML
	PowerOff      []string // ends the machine
}

// FromEnv reads the settings. getenv is os.Getenv. Every variable that is wrong has its own line in the error:
//
//	LOWTIDE_MACHINE     our name of the machine              needed
//	LOWTIDE_FLEET       its fleet                            needed
//	LOWTIDE_NATS        nats://, tls:// or wss://            needed
//	LOWTIDE_BUCKET      file:///dir, s3://bucket …           needed
//	LOWTIDE_CKPT_KEY    hex, 16 bytes or more                needed
//	LOWTIDE_DIR         directory of the agent               "lowtide"
//	LOWTIDE_ID          the cloud's name of the machine      ""
//	LOWTIDE_CLOUD, LOWTIDE_ACCOUNT  where it is              ""
//	LOWTIDE_NATS_TOKEN  credential                           ""
//	LOWTIDE_CLOCK       as fn.Clock writes it                wall time
//	LOWTIDE_METADATA    URL of the notices                   none
//	LOWTIDE_METADATA_TOKEN  URL that gives tokens for it         none
//	LOWTIDE_SCRAPE      URL of dcgm-exporter's page          none: NVML
//	LOWTIDE_LEASE       duration without contact             6h
//	LOWTIDE_HARD_END    RFC 3339                             none
//	LOWTIDE_BOUGHT      RFC 3339, when billing began         not known
//	LOWTIDE_BENCH       JSON list: command and arguments     none
//	LOWTIDE_BENCH_IMAGE container image of the runner        none: a process
//	LOWTIDE_POWEROFF    JSON list: command and arguments     ["shutdown","-h","now"]
func FromEnv(getenv func(string) string) (Settings, error) {
	r := reader{getenv: getenv}
	s := Settings{
		Config: Config{
			Machine: r.needed("LOWTIDE_MACHINE"), Fleet: r.needed("LOWTIDE_FLEET"),
			ID: getenv("LOWTIDE_ID"), Cloud: getenv("LOWTIDE_CLOUD"), Account: getenv("LOWTIDE_ACCOUNT"),
			HardEnd: r.time("LOWTIDE_HARD_END"), Bought: r.time("LOWTIDE_BOUGHT"), Lease: r.duration("LOWTIDE_LEASE"),
		},
		Dir: r.or("LOWTIDE_DIR", "lowtide"), NATS: r.url("LOWTIDE_NATS", true), Token: getenv("LOWTIDE_NATS_TOKEN"),
		Bucket: r.url("LOWTIDE_BUCKET", true), Key: r.key("LOWTIDE_CKPT_KEY"), Metadata: r.url("LOWTIDE_METADATA", false),
		MetadataToken: r.url("LOWTIDE_METADATA_TOKEN", false),
		Bench:         Proof{Command: r.list("LOWTIDE_BENCH", nil), Image: getenv("LOWTIDE_BENCH_IMAGE")},
		Scrape:        r.url("LOWTIDE_SCRAPE", false),
		PowerOff:      r.list("LOWTIDE_POWEROFF", []string{"shutdown", "-h", "now"}),
	}
	var err error
	if s.Clock, err = fn.ParseClock(getenv("LOWTIDE_CLOCK")); err != nil {
		r.wrong("LOWTIDE_CLOCK", "%v", err)
	}
	return s, errors.Join(r.errs...)
}

// reader collects what is wrong.
type reader struct {
	getenv func(string) string
	errs   []error
}

func (r *reader) wrong(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
}

func (r *reader) or(name, otherwise string) string {
	if v := r.getenv(name); v != "" {
		return v
	}
	return otherwise
}

func (r *reader) needed(name string) string {
	v := r.getenv(name)
	if v == "" {
		r.wrong(name, "is not set")
	}
	return v
}

func (r *reader) url(name string, needed bool) string {
	v := r.getenv(name)
	if v == "" && needed {
		r.wrong(name, "is not set")
	}
	// The value is not repeated: it may hold a password.
	if u, err := url.Parse(v); v != "" && (err != nil || u.Scheme == "") {
		r.wrong(name, "is not a URL")
	}
	return v
}

func (r *reader) key(name string) []byte {
	v := r.needed(name)
	b, err := hex.DecodeString(v)
	if v != "" && (err != nil || len(b) < 16) {
		r.wrong(name, "want 16 bytes or more in hex")
	}
	return b
}

func (r *reader) time(name string) time.Time {
	v := r.getenv(name)
	if v == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil {
		r.wrong(name, "%q: want a time such as 2026-01-31T15:04:05Z", v)
	}
	return t
}

func (r *reader) duration(name string) time.Duration {
	v := r.getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		r.wrong(name, "%q: want a duration above zero such as 6h", v)
	}
	return d
}

func (r *reader) list(name string, otherwise []string) []string {
	v := r.getenv(name)
	if v == "" {
		return otherwise
	}
	var list []string
	if err := json.Unmarshal([]byte(v), &list); err != nil || len(list) == 0 {
		r.wrong(name, `want a JSON list of strings such as ["benchrunner","run"]`)
	}
	return list
}
