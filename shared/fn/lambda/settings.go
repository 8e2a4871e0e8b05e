package lambda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"lowtide/shared/fn"
)

// Settings are a function's environment.
type Settings struct {
	NATS     string        // LOWTIDE_NATS_URL
	CA       string        // LOWTIDE_NATS_CA: certificates in PEM that may have signed the server's; "": the system's
	Inbox    string        // LOWTIDE_NATS_INBOX: where answers come; the user may read only there
	Fleet    string        // LOWTIDE_FLEET: the decision domain that this deployment serves
	Install  string        // LOWTIDE_INSTALL: random id of the installation, on the labels of its machines
	Dry      bool          // LOWTIDE_DRY: true unless it says "false"
	Cloud    string        // LOWTIDE_CLOUD: URL of a fake cloud
	Accounts string        // LOWTIDE_ACCOUNTS: "aws/123456789012=main,…": our names of the clouds' accounts
	Timeout  time.Duration // LOWTIDE_TIMEOUT: where an invocation has no deadline; 30 s
	Clock    fn.Clock      // LOWTIDE_CLOCK: lowtide's time, where it is not the wall's
	Getenv   func(string) string

	// Secret reads the user's credentials, a NATS creds file; nil: the server asks for none.
	Secret func(ctx context.Context) ([]byte, error)
}

// FromEnv reads and checks the environment.
func FromEnv(getenv func(string) string) (s Settings, err error) {
	s = Settings{
		NATS: getenv("LOWTIDE_NATS_URL"), CA: getenv("LOWTIDE_NATS_CA"), Inbox: getenv("LOWTIDE_NATS_INBOX"),
		Fleet: getenv("LOWTIDE_FLEET"), Install: getenv("LOWTIDE_INSTALL"), Dry: getenv("LOWTIDE_DRY") != "false",
		Cloud: getenv("LOWTIDE_CLOUD"), Accounts: getenv("LOWTIDE_ACCOUNTS"), Timeout: 30 * time.Second, Getenv: getenv,
	}
	if s.NATS == "" {
		return s, errors.New("LOWTIDE_NATS_URL is not set: where is NATS? Such as tls://nats.example:4222")
	}
	if s.Fleet == "" {
		return s, errors.New("LOWTIDE_FLEET is not set: the name of the fleet that this deployment serves")
	}
	if t := getenv("LOWTIDE_TIMEOUT"); t != "" {
		if s.Timeout, err = time.ParseDuration(t); err != nil || s.Timeout <= 0 {
			return s, fmt.Errorf("LOWTIDE_TIMEOUT %q: want a duration above zero, such as 30s", t)
		}
	}
	if s.Clock, err = fn.ParseClock(getenv("LOWTIDE_CLOCK")); err != nil {
		return s, fmt.Errorf("LOWTIDE_CLOCK: %w", err)
	}
	for pair := range strings.SplitSeq(s.Accounts, ",") {
		if id, name, ok := strings.Cut(pair, "="); pair != "" && (!ok || name == "" || !strings.Contains(id, "/")) {
			return s, fmt.Errorf("LOWTIDE_ACCOUNTS %q: want <cloud>/<id>=<name>, separated by commas", pair)
		}
	}
	switch file, secret := getenv("LOWTIDE_NATS_CREDS"), getenv("LOWTIDE_NATS_SECRET"); {
	case file != "" && secret != "":
		return s, errors.New("LOWTIDE_NATS_CREDS and LOWTIDE_NATS_SECRET are both set: which one?")
	case file != "":
		s.Secret = func(context.Context) ([]byte, error) { return os.ReadFile(file) }
	case secret != "":
		s.Secret = secretReader(secret, getenv)
	}
	return s, nil
}

// AccountNames are the pairs of Accounts.
func (s Settings) AccountNames() map[string]string {
	out := map[string]string{}
	for pair := range strings.SplitSeq(s.Accounts, ",") {
		if id, name, ok := strings.Cut(pair, "="); ok {
			out[id] = name
		}
	}
	return out
}
