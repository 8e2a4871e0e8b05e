package static_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
	"lowtide/shared/provider/providertest"
	"lowtide/shared/provider/static"
)

// agent stands in for the program that machines fetch: it lives, with a child as a job is.
const agent = "#!/bin/sh\nmkdir -p work/run\nLOWTIDE_CKPT_DIR=\"$PWD/work/ckpt\" setsid sleep 300 &\nprintf '{\"pid\": %d}' $! >work/run/workload.json\nwait\n"

// lab is some machines on this host: each has a home of its own, and ssh is sh.
type lab struct {
	t    *testing.T
	home string
	boot provider.Boot

	mu      sync.Mutex
	fail    map[string]error
	bought  []string
	written []string
	away    map[string]bool
}

func newLab(t *testing.T) *lab {
	if runtime.GOOS != "linux" {
		t.Skip("a machine's processes are found in /proc")
	}
	for _, program := range []string{"sh", "curl", "setsid", "sha256sum", "base64"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip("a machine needs it: ", err)
		}
	}
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(agent)) }))
	t.Cleanup(mirror.Close)
	sum := sha256.Sum256([]byte(agent))
	digest := hex.EncodeToString(sum[:])
	return &lab{
		t: t, home: t.TempDir(), fail: map[string]error{}, away: map[string]bool{},
		boot: provider.Boot{Mirror: mirror.URL, SHA256: map[string]string{"amd64": digest, "arm64": digest}},
	}
}

func (l *lab) dir(target string) string { return filepath.Join(l.home, target) }

// shell runs a script on a machine. What it does is told from the script.
func (l *lab) shell(ctx context.Context, target, script string) (string, error) {
	call := "list"
	switch {
	case strings.Contains(script, "echo taken"):
		call = "launch"
	case strings.Contains(script, "kill -KILL"):
		call = "end"
	}
	l.mu.Lock()
	err := l.fail[call]
	delete(l.fail, call)
	away := l.away[target]
	if call == "end" {
		l.written = append(l.written, target)
	}
	l.mu.Unlock()
	switch {
	case away:
		return "", errors.New("exit status 255: connection refused")
	case err != nil && !errors.Is(err, provider.ErrUnknown):
		return "", err
	}
	if err := os.MkdirAll(l.dir(target), 0o700); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", "-s")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir(target)}
	cmd.Stdin = strings.NewReader(script)
	out, rerr := cmd.Output()
	if call == "launch" && rerr == nil && strings.HasPrefix(string(out), "taken") {
		l.mu.Lock()
		l.bought = append(l.bought, l.held(target))
		l.mu.Unlock()
	}
	if err != nil {
		return "", err // it was done, and the answer is lost
	}
	return string(out), rerr
}

// held is what a machine is called while somebody holds it: its name, and the end of the purchase's token.
func (l *lab) held(target string) string {
	var k struct{ Token string }
	b, err := os.ReadFile(filepath.Join(l.dir(target), ".lowtide", "mark"))
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		l.t.Error(err)
	}
	return target + "/" + k.Token[max(0, len(k.Token)-8):]
}

func (l *lab) open(n int) *static.Static {
	var all []static.Machine
	for i := range n {
		name := fmt.Sprintf("rack-%d", i)
		all = append(all, static.Machine{Name: name, Target: name, Region: "fra", Card: provider.Card{Model: "A100", Form: "SXM4", Memory: 80}, GPUs: 8, Hourly: decimal.NewFromInt(int64(i))})
	}
	p := static.New(static.Settings{Machines: all, Boot: l.boot, Shell: l.shell})
	l.t.Cleanup(func() {
		l.away = map[string]bool{}
		for _, m := range all {
			_ = p.End(context.Background(), m.Name)
		}
	})
	return p
}

// others writes a mark that is not ours.
func (l *lab) others(target string) {
	dir := filepath.Join(l.dir(target), ".lowtide")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "mark"), []byte("ada, until Friday\n"), 0o600)); err != nil {
		l.t.Fatal(err)
	}
}

func TestMachinesThatAreThereAlreadyKeepTheContract(t *testing.T) {
	t.Parallel()
	providertest.Run(t, func(t *testing.T) (provider.Provider, *providertest.World) {
		l := newLab(t)
		p := l.open(9)
		l.others("rack-8")
		return p, &providertest.World{
			Fail: func(call string, err error) bool {
				if call == "offers" {
					return false // one that does not answer is not offered; that is no error
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				l.fail[call] = err
				return true
			},
			Pass: func(time.Duration) {}, Foreign: []string{"rack-8"}, EndTakes: time.Second, Nobody: "rack-99",
			Bought:  func() []string { l.mu.Lock(); defer l.mu.Unlock(); return append([]string{}, l.bought...) },
			Written: func() []string { l.mu.Lock(); defer l.mu.Unlock(); return append([]string{}, l.written...) },
		}
	})
}

func request(p provider.Provider, t *testing.T, machine, plan string) provider.Request {
	t.Helper()
	all, err := p.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.Type == machine {
			return provider.Request{Token: "token-" + plan, Name: "f1-m-" + plan, Offer: o, Labels: providertest.Labels(plan), UserData: "LOWTIDE_MACHINE=m\n"}
		}
	}
	t.Fatalf("%s is not offered", machine)
	return provider.Request{}
}

func pidOf(t *testing.T, file string) string {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // another process writes it
		if b, err := os.ReadFile(file); err == nil {
			if digits := strings.Map(func(r rune) rune {
				if r >= '0' && r <= '9' {
					return r
				}
				return -1
			}, string(b)); digits != "" {
				return digits
			}
		}
	}
	t.Fatalf("%s was not written", file)
	return ""
}

func TestAMachineServesOneWorkloadAndItsEndLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.open(2)
	want := request(p, t, "rack-0", "p1")
	if want.Offer.Market != fleet.Spot || want.Offer.Price.Amount.Amount.Sign() <= 0 {
		t.Errorf("offered as %+v: it may be busy, and a price of nothing is not believed", want.Offer)
	}
	if _, err := p.Launch(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if again, err := p.Launch(t.Context(), want); err != nil || again.ID != l.held("rack-0") {
		t.Errorf("the same plan again: %+v, %v", again, err)
	}
	if _, err := p.Launch(t.Context(), provider.Request{Token: "t2", Name: "m2", Offer: want.Offer, Labels: providertest.Labels("p2")}); !errors.Is(err, provider.ErrNoCapacity) {
		t.Errorf("another plan: %v, want no capacity", err)
	}
	if o := request(p, t, "rack-0", "p2").Offer; o.Stock.Or(1) != 0 {
		t.Error("a machine in use is offered")
	}
	dir := filepath.Join(l.dir("rack-0"), ".lowtide")
	pids := []string{pidOf(t, filepath.Join(dir, "run", "agent.pid")), pidOf(t, filepath.Join(dir, "run", "work", "run", "workload.json"))}
	if err := p.End(t.Context(), "rack-0/another1"); err != nil { // gone already: whoever holds it now keeps it
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "mark")); err != nil {
		t.Errorf("the end of an earlier purchase took the machine from whoever holds it: %v", err)
	}
	if err := p.End(t.Context(), l.held("rack-0")); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) { // a killed process takes a moment
			b, err := os.ReadFile("/proc/" + pid + "/environ")
			if err != nil || len(b) == 0 {
				break
			}
			if time.Now().After(end) {
				t.Errorf("process %s lives on", pid)
				break
			}
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != "release" {
		t.Errorf("left there: %v", left)
	}
	if o := request(p, t, "rack-0", "p3").Offer; o.Stock.Or(0) != 1 {
		t.Error("a machine that was given back is not offered")
	}
}

func TestAMachineThatDoesNotAnswerIsNotOfferedAndOnlyInTheWayIfItMayHoldAWorkload(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.open(2)
	if _, err := p.Launch(t.Context(), request(p, t, "rack-0", "p1")); err != nil {
		t.Fatal(err)
	}
	l.away["rack-1"] = true
	if o := request(p, t, "rack-1", "p2").Offer; o.Stock.Or(1) != 0 {
		t.Error("it is offered")
	}
	if all, err := p.List(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("a free one is away: %v, %v", all, err)
	}
	l.away["rack-0"] = true
	if _, err := p.List(t.Context()); !errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), "rack-0") {
		t.Errorf("one with a workload is away: %v, want an error that names it", err)
	}
	l.away["rack-0"] = false
	if _, err := l.open(2).List(t.Context()); err == nil || !strings.Contains(err.Error(), "rack-1") {
		t.Errorf("nobody knows what the other holds: %v", err)
	}
}

func TestTheFileOfMachinesIsReadOrRefusedLineByLine(t *testing.T) {
	t.Parallel()
	got, err := static.Read("m.yaml", []byte("machines:\n- {name: rack1-a, ssh: ada@rack1, gpu: A100 80GB SXM4, gpus: 8, price: 0, region: fra, cuda: \"12.4\", until: 2027-03-31}\n- {name: b, ssh: b, price: 1.5}\n"))
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	if m := got[0]; m.Card.Model != "A100" || m.Card.Memory != 80 || m.GPUs != 8 || !m.Until.Equal(time.Date(2027, 4, 1, 0, 0, 0, 0, time.UTC)) || got[1].Region != "here" {
		t.Errorf("got %+v", got)
	}
	_, err = static.Read("m.yaml", []byte("machines:\n- {name: A, ssh: a, price: 0}\n- {name: b, ssh: -oProxyCommand=x, price: 0}\n- {name: c, ssh: c, price: free}\n- {name: d, ssh: d, price: 0, gpu: Z900}\n- {name: e, ssh: e, price: 0}\n- {name: e, ssh: f, price: 0}\n- {name: g, ssh: g, price: 0, until: soon}\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("got %v, want six lines", err)
	}
	for _, bad := range []string{"", "machines: []\n", "machine: 1\n", "{["} {
		if _, err := static.Read("m.yaml", []byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	past := static.New(static.Settings{
		Machines: []static.Machine{{Name: "a", Target: "a", Region: "r", Until: time.Now().Add(-time.Hour)}},
		Shell:    func(context.Context, string, string) (string, error) { return "", nil },
	})
	if all, err := past.Offers(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("after its contract: %v, %v", all, err)
	}
}
