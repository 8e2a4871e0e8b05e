// Package static is machines that are there already: a contract, a rack, a research cloud. They are listed in a file and
// reached by ssh; none is ever bought, and none is switched off.
//
// It promises:
//
//   - A machine serves one workload at a time: whoever takes it writes a mark there first, whole or not at all, and a second
//     one is refused. What somebody else has marked is shown and left alone.
//   - An end stops what lowtide started there (agent, holder, job, container), removes its files and its mark, and nothing
//     else; so does the machine's own end, by lease or hard end. A process is known by its directory in its environment,
//     never by its number alone.
//   - A list is complete: a machine that does not answer, and may hold a workload of ours, makes it an error that names the
//     machine. One that does not answer is not offered.
//
// It sells as spot: a machine of one's own may be busy, so that a deadline must not rest on it. An hour costs what the file
// says; nothing, for what is paid anyway, is a hundredth of a cent, since a price of zero is believed of nobody.
//
// It uses the ssh program, with the user's own keys, hosts and configuration.
package static

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
	"lowtide/shared/provider"
)

// Cloud is this cloud's name.
const Cloud = "static"

// Shell runs a script for sh on a machine and returns what it printed. An error of provider's closed list is passed on; any
// other is ErrUnavailable, or ErrUnknown where something may have happened.
type Shell func(ctx context.Context, target, script string) (string, error)

// Settings are the machines. Shell and Now have useful zero values.
type Settings struct {
	Account  string // "main"
	Machines []Machine
	Boot     provider.Boot
	Shell    Shell // nil: SSH
	Now      func() time.Time
}

// Machine is one of them.
type Machine struct {
	Name   string
	Target string // as ssh takes it: user@host, or a name of its configuration
	Region string
	Card   provider.Card
	GPUs   int
	CUDA   string
	Hourly decimal.Decimal // USD; what using it costs more than not
	Until  time.Time       // of its contract; zero: none
}

// Static implements provider.Provider.
type Static struct {
	s Settings

	mu   sync.Mutex
	last map[string]provider.Labels // what each machine was last seen to hold
}

// New makes the adapter.
func New(s Settings) *Static {
	if s.Account == "" {
		s.Account = "main"
	}
	if s.Shell == nil {
		s.Shell = SSH("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return &Static{s: s, last: map[string]provider.Labels{}}
}

// Traits implements provider.Provider.
func (p *Static) Traits() provider.Traits {
	return provider.Traits{Cloud: Cloud, Account: p.s.Account, OffEnds: true}
}

// least is the price of what costs nothing.
var least = decimal.New(1, -4)

func (p *Static) offer(m Machine) fleet.Offer {
	usd := fleet.Money{Amount: decimal.Max(m.Hourly, least), Currency: fleet.USD}
	return fleet.Offer{
		Cloud: Cloud, Account: p.s.Account, Region: m.Region, Type: m.Name, Market: fleet.Spot,
		GPU: m.Card.Model, GPUs: m.GPUs, Form: m.Card.Form, Memory: m.Card.Memory, CUDA: m.CUDA,
		Price: fleet.Price{Amount: usd, Per: fleet.PerInstanceHour, Includes: "yours already"}, Hourly: fleet.Known(usd),
	}
}

// mark is what a machine says of itself while somebody holds it.
type mark struct {
	Labels string    `json:"labels"` // as text
	Token  string    `json:"token"`
	Since  time.Time `json:"since"`
}

// seen is one look at a machine.
type seen struct {
	mark
	held bool
	err  error
}

// look asks all machines at once.
func (p *Static) look(ctx context.Context) []seen {
	out := make([]seen, len(p.s.Machines))
	var all sync.WaitGroup
	for i, m := range p.s.Machines {
		all.Go(func() {
			text, err := p.s.Shell(ctx, m.Target, looking)
			if err != nil {
				out[i] = seen{err: listed(m, err)}
				return
			}
			out[i] = read(text)
		})
	}
	all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range p.s.Machines {
		if out[i].err == nil {
			p.last[m.Name] = provider.FromText(out[i].Labels)
		}
	}
	return out
}

// read reads a mark; one that is not ours to read is somebody's all the same.
func read(text string) seen {
	text = strings.TrimSpace(text)
	if text == "" {
		return seen{}
	}
	s := seen{held: true}
	if json.Unmarshal([]byte(text), &s.mark) != nil {
		s.mark = mark{}
	}
	return s
}

// closed makes an error one of the closed list.
func closed(err, otherwise error) error {
	if provider.Word(err) != "other" {
		return err
	}
	return fmt.Errorf("%w: %w", otherwise, err)
}

func listed(m Machine, err error) error {
	return fmt.Errorf("%s (%s) does not answer: %w", m.Name, m.Target, closed(err, provider.ErrUnavailable))
}

// Offers implements provider.Provider. A machine that is held, or does not answer, is out of stock.
func (p *Static) Offers(ctx context.Context) ([]fleet.Offer, error) {
	found := p.look(ctx)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("static: offers: %w", closed(err, provider.ErrUnavailable))
	}
	var out []fleet.Offer
	for i, m := range p.s.Machines {
		if !m.Until.IsZero() && !p.s.Now().Before(m.Until) {
			continue
		}
		o := p.offer(m)
		o.Stock = fleet.Known(1)
		if found[i].held || found[i].err != nil {
			o.Stock = fleet.Known(0)
		}
		out = append(out, o)
	}
	return out, nil
}

// List implements provider.Provider.
func (p *Static) List(ctx context.Context) ([]provider.Machine, error) {
	var out []provider.Machine
	var errs error
	for i, s := range p.look(ctx) {
		m := p.s.Machines[i]
		if s.err != nil {
			p.mu.Lock()
			last, known := p.last[m.Name]
			p.mu.Unlock()
			if !known || last != (provider.Labels{}) {
				errs = errors.Join(errs, s.err)
			}
			continue
		}
		if s.held {
			out = append(out, p.machine(m, s.mark))
		}
	}
	if err := ctx.Err(); err != nil {
		errs = closed(err, provider.ErrUnavailable)
	}
	if errs != nil {
		return nil, fmt.Errorf("static: list: %w", oneLine(errs))
	}
	return out, nil
}

// oneLine keeps the errors and writes them in one line.
func oneLine(err error) error {
	return &flat{err}
}

type flat struct{ error }

func (f *flat) Error() string { return strings.ReplaceAll(f.error.Error(), "\n", "; ") }
func (f *flat) Unwrap() error { return f.error }

// id is a machine while one purchase holds it: who takes it next holds another.
func id(m Machine, k mark) string {
	if tail := k.Token[max(0, len(k.Token)-8):]; token.MatchString(tail) {
		return m.Name + "/" + tail
	}
	return m.Name
}

var token = regexp.MustCompile(`^[A-Za-z0-9-]+$`)

func (p *Static) machine(m Machine, k mark) provider.Machine {
	return provider.Machine{ID: id(m, k), Labels: provider.FromText(k.Labels), State: provider.Running, Offer: p.offer(m), Since: k.Since}
}

// Launch implements provider.Provider: it takes the machine and starts the agent there. A plan that holds a machine already
// gets that one.
func (p *Static) Launch(ctx context.Context, want provider.Request) (provider.Machine, error) {
	m, err := p.launch(ctx, want)
	if err != nil {
		return provider.Machine{}, fmt.Errorf("static: launch %s: %w", want.Offer, err)
	}
	return m, nil
}

func (p *Static) launch(ctx context.Context, want provider.Request) (none provider.Machine, err error) {
	m, ok := p.named(want.Offer.Type)
	if !ok || want.Offer.Market != fleet.Spot {
		return none, fmt.Errorf("%w: the file has no machine %q", provider.ErrInvalid, want.Offer.Type)
	}
	boot, err := p.s.Boot.Script(want.UserData, place)
	if err != nil {
		return none, err
	}
	mine := mark{Labels: want.Labels.Text(), Token: want.Token, Since: p.s.Now().UTC().Truncate(time.Second)}
	text, err := json.Marshal(mine)
	if err != nil {
		return none, err
	}
	in := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	script := strings.NewReplacer("@MARK@", in(string(text)), "@RELEASE@", in(releasing), "@BOOT@", in(boot)).Replace(taking)
	out, err := p.s.Shell(ctx, m.Target, script)
	if err != nil {
		return none, closed(err, provider.ErrUnknown)
	}
	state, held, _ := strings.Cut(strings.TrimSpace(out), "\n")
	switch k := read(held); {
	case state == "taken" || state == "held" && k.Labels == mine.Labels && k.Token == mine.Token:
		if state == "held" {
			mine = k.mark
		}
		return p.machine(m, mine), nil
	case state == "held":
		return none, fmt.Errorf("%w: it is in use", provider.ErrNoCapacity)
	}
	return none, fmt.Errorf("%w: the agent does not start there: %s", provider.ErrUnavailable, strings.Join(strings.Fields(out), " "))
}

func (p *Static) named(name string) (Machine, bool) {
	for _, m := range p.s.Machines {
		if m.Name == name {
			return m, true
		}
	}
	return Machine{}, false
}

// End implements provider.Provider: the machine is given back, if it is still the one that was taken.
func (p *Static) End(ctx context.Context, id string) error {
	name, tail, _ := strings.Cut(id, "/")
	m, ok := p.named(name)
	if !ok || tail != "" && !token.MatchString(tail) {
		return fmt.Errorf("static: end %s: %w", id, provider.ErrNotFound)
	}
	if _, err := p.s.Shell(ctx, m.Target, strings.ReplaceAll(ending, "@TOKEN@", tail)+releasing); err != nil {
		return fmt.Errorf("static: end %s: %w", id, closed(err, provider.ErrUnavailable))
	}
	return nil
}
