package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/goccy/go-yaml"
	"github.com/shopspring/decimal"

	"lowtide/events"
	"lowtide/shared/fleet"
	"lowtide/shared/order"
)

// Options read a file.
type Options struct {
	Env  func(string) (string, bool)       // variables; nil: there are none
	Open func(name string) ([]byte, error) // the files that it names; nil: there are none
	Look func(name string, b []byte) error // at a workload file; nil: it is looked at when it is asked for
	Kind map[events.Kind]reflect.Type      // of facts; nil: all that there are
}

// Set are the rules of a file, checked and compiled.
type Set struct {
	rules  []*rule
	byName map[string]*rule
	byKind map[events.Kind][]*rule
	fields *fields
	prices bool // some rule asks for them
}

// rule is one, ready to run.
type rule struct {
	name   string
	digest string // of all that it says: a rule that was changed begins anew
	kinds  []events.Kind
	when   expr // nil: always
	lasts  time.Duration
	state  bool // it is about a state that lasts, not about a moment
	at     schedule
	window *window
	every  time.Duration
	zone   *time.Location
	role   order.Role
	dry    bool
	do     []*deed // what begins it, then what ends it
	after  int     // index of the first that ends it
}

// deed is one act, ready.
type deed struct {
	verb     string
	about    text // a workload, or a pattern
	text     text
	severity string
	money    fleet.Money
	budget   fleet.Maybe[fleet.Money]
	hook     hook
	work     work
	file     []byte
}

// Names are the rules, in the file's order.
func (s *Set) Names() (names []string) {
	for _, r := range s.rules {
		names = append(names, r.name)
	}
	return names
}

// reader compiles one file.
type reader struct {
	source
	o     Options
	set   *Set
	base  *cel.Env
	envs  map[events.Kind]*cel.Env
	entry entry
	path  string
	rule  *rule
}

// Parse reads, checks and compiles a rules file; every error is a Problem or several, joined.
func Parse(name string, b []byte, o Options) (*Set, error) {
	f, src, err := read(name, b, o.Env)
	if err != nil {
		return nil, err
	}
	if o.Kind == nil {
		o.Kind = events.Kinds()
	}
	c := &reader{source: src, o: o, set: &Set{byName: map[string]*rule{}, byKind: map[events.Kind][]*rule{}}, envs: map[events.Kind]*cel.Env{}}
	if c.set.fields, err = newFields(); err != nil {
		return nil, err
	}
	if c.base, err = c.environment(); err != nil {
		return nil, err
	}
	if _, err := zone(f.Timezone); err != nil {
		return nil, c.at("$.timezone", "", err.Error(), 0, 0)
	}
	if f.Role != "" && !order.Role(f.Role).Valid() {
		return nil, c.at("$.role", "", badRole(f.Role), 0, 0)
	}
	var all []error
	for i, e := range f.Rules {
		e.Timezone, e.Role, e.Dry = or(e.Timezone, f.Timezone), or(e.Role, or(f.Role, string(order.Operator))), e.Dry || f.Dry
		c.entry, c.path = e, fmt.Sprintf("$.rules[%d]", i)
		if err := c.read(); err != nil {
			all = append(all, err)
		}
	}
	if err := errors.Join(all...); err != nil {
		return nil, err
	}
	for _, r := range c.set.rules {
		for _, k := range r.kinds {
			c.set.byKind[k] = append(c.set.byKind[k], r)
		}
	}
	return c.set, nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func badRole(s string) string { return fmt.Sprintf("%q: want viewer, operator or admin", s) }

func zone(name string) (*time.Location, error) {
	if name == "Local" {
		return nil, errors.New(`"Local" differs from host to host; give a name such as Asia/Shanghai`)
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("timezone %q is not known; give a name such as Asia/Shanghai", name)
	}
	return z, nil
}

// wrong is a problem of a field of the present rule.
func (c *reader) wrong(field, format string, args ...any) error {
	return c.at(c.path+field, c.entry.Name, fmt.Sprintf(format, args...), 0, 0)
}

var plainName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,47}$`)

// read compiles the present entry.
func (c *reader) read() error {
	e := c.entry
	if !plainName.MatchString(e.Name) {
		return c.wrong(".name", "name %q: want 1 to 48 of a-z, 0-9 and '-'", e.Name)
	}
	if c.set.byName[e.Name] != nil {
		return c.wrong(".name", "there are two rules of this name")
	}
	r := &rule{name: e.Name, role: order.Role(e.Role), dry: e.Dry}
	c.rule = r
	for _, part := range []func() error{c.times, c.facts, c.condition, c.deeds} {
		if err := part(); err != nil {
			return err
		}
	}
	b, err := json.Marshal(e)
	if err != nil {
		return c.wrong("", "%v", err)
	}
	c.set.prices = c.set.prices || bytes.Contains(b, []byte("prices"))
	sum := sha256.Sum256(b)
	r.digest = hex.EncodeToString(sum[:8])
	c.set.byName[r.name] = r
	if !e.Off {
		c.set.rules = append(c.set.rules, r)
	}
	return nil
}

// times reads zone, schedule and lengths.
func (c *reader) times() (err error) {
	e, r := c.entry, c.rule
	if !r.role.Valid() {
		return c.wrong(".role", "role %s", badRole(e.Role))
	}
	if r.zone, err = zone(e.Timezone); err != nil {
		return c.wrong(".timezone", "%v", err)
	}
	for _, d := range []struct {
		field, text string
		to          *time.Duration
	}{{".for", e.For, &r.lasts}, {".every", e.Every, &r.every}} {
		if d.text == "" {
			continue
		}
		if *d.to, err = time.ParseDuration(d.text); err != nil || *d.to <= 0 || *d.to > 30*24*time.Hour {
			return c.wrong(d.field, "%q: want a duration such as 10m or 6h, 30 days at most", d.text)
		}
	}
	if e.At != "" {
		if r.at, err = parseSchedule(e.At, r.zone.String()); err != nil {
			return c.wrong(".at", "at: %v", err)
		}
	}
	if e.During != "" {
		w, err := parseWindow(e.During, r.zone)
		if err != nil {
			return c.wrong(".during", "during: %v", err)
		}
		r.window = &w
	}
	return nil
}

// facts reads what wakes it.
func (c *reader) facts() error {
	e, r := c.entry, c.rule
	for _, k := range e.Fact {
		kind := events.Kind(k)
		switch {
		case c.o.Kind[kind] == nil:
			return c.wrong(".fact", "there is no fact %q%s", k, c.near(k))
		case kind == "utilisation.measured":
			return c.wrong(".fact", "utilisation.measured is telemetry, not a fact; workload.idle, .underused and .busy are what it comes to")
		case kind == "clock.ticked":
			return c.wrong(".fact", "clock.ticked is what rules without a fact are looked at by: leave fact out, or give at")
		case kind == "webhook.asked":
			return c.wrong(".fact", "no rule may act on %s", k)
		case slices.Contains(r.kinds, kind):
			return c.wrong(".fact", "%s is named twice", k)
		}
		r.kinds = append(r.kinds, kind)
	}
	switch {
	case r.at != nil && (len(r.kinds) > 0 || r.lasts > 0 || r.window != nil):
		return c.wrong(".at", "at is a moment of its own: it goes with neither fact, for nor during")
	case len(r.kinds) == 0 && r.at == nil && r.window == nil && e.When == "":
		return c.wrong("", "nothing wakes it: give fact, when, at or during")
	}
	r.state = r.at == nil && (r.lasts > 0 || len(r.kinds) == 0)
	if len(e.After) > 0 && !r.state {
		return c.wrong(".after", "after is what ends a state; a moment has none: give for, during, or when without fact")
	}
	return nil
}

func (c *reader) near(word string) string {
	noun, _, _ := strings.Cut(word, ".")
	var like []string
	for k := range c.o.Kind {
		if strings.HasPrefix(string(k), noun+".") {
			like = append(like, string(k))
		}
	}
	if len(like) == 0 {
		return "; lowtide events shows the kinds, such as workload.idle or price.changed"
	}
	slices.Sort(like)
	return "; there are " + strings.Join(like, ", ")
}

func (c *reader) condition() (err error) {
	if c.entry.When != "" {
		c.rule.when, err = c.compile(".when", c.entry.When, 0, 0, types.BoolType)
	}
	return err
}

// deeds reads do and after.
func (c *reader) deeds() error {
	e := c.entry
	if len(e.Do) == 0 {
		return c.wrong("", "it does nothing: give do")
	}
	c.rule.after = len(e.Do)
	for i, s := range e.Do {
		if err := c.deed(fmt.Sprintf(".do[%d]", i), s); err != nil {
			return err
		}
	}
	for i, s := range e.After {
		if err := c.deed(fmt.Sprintf(".after[%d]", i), s); err != nil {
			return err
		}
	}
	return nil
}

// deed reads one step.
func (c *reader) deed(path string, s step) (err error) {
	d := &deed{}
	n := 0
	for verb, about := range map[string]string{"pause": s.Pause, "resume": s.Resume, "checkpoint": s.Checkpoint, "replan": s.Replan, "stop": s.Stop} {
		if about != "" {
			n++
			d.verb = verb
			path = path + "." + verb
			d.about, err = c.text(path, about)
		}
	}
	for verb, given := range map[string]func() error{
		"notify":  only(s.Notify != nil, func() error { return c.note(d, path+".notify", *s.Notify) }),
		"webhook": only(s.Webhook != nil, func() error { return c.hook(d, path+".webhook", *s.Webhook) }),
		"budget":  only(s.Budget != nil, func() error { return c.spending(d, path+".budget", *s.Budget) }),
		"submit":  only(s.Submit != nil, func() error { return c.work(d, path+".submit", *s.Submit) }),
		"scale":   only(s.Scale != nil, func() error { return c.work(d, path+".scale", *s.Scale) }),
	} {
		if given == nil {
			continue
		}
		n++
		d.verb = verb
		if err == nil {
			err = given()
		}
	}
	switch {
	case n != 1:
		return c.wrong(path, "want one of notify, webhook, pause, resume, checkpoint, replan, stop, budget, submit, scale in each step; here are %d", n)
	case err != nil:
		return err
	case !c.rule.role.May(d.verb):
		return c.wrong(path, "%s needs the role %s, and this rule is %s: give role", d.verb, order.Needs(d.verb), c.rule.role)
	}
	c.rule.do = append(c.rule.do, d)
	return nil
}

func only(yes bool, f func() error) func() error {
	if yes {
		return f
	}
	return nil
}

func (c *reader) note(d *deed, path string, n note) (err error) {
	if n.Severity == "" {
		n.Severity = "warning"
	}
	if n.Severity != "info" && n.Severity != "warning" && n.Severity != "critical" {
		return c.wrong(path+".severity", "severity %q: want info, warning or critical", n.Severity)
	}
	if n.Text == "" {
		return c.wrong(path, "notify: give a text")
	}
	d.severity = n.Severity
	if c.hasPath(path + ".text") {
		path += ".text"
	}
	d.text, err = c.text(path, n.Text)
	return err
}

func (c *reader) hasPath(path string) bool {
	line, _ := c.place(c.path+path, 0, 0)
	return line > 0
}

func (c *reader) hook(d *deed, path string, h hook) (err error) {
	u, perr := url.Parse(h.URL)
	if perr != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return c.wrong(path+".url", "webhook: want an http or https URL") // which is a secret: it is not repeated
	}
	if h.Secret != "" && len(h.Secret) < 8 {
		return c.wrong(path+".secret", "webhook: too short to be a secret")
	}
	d.hook = h
	d.text, err = c.text(path+".text", h.Text)
	return err
}

func (c *reader) spending(d *deed, path string, s spending) (err error) {
	if s.Workload == "" {
		return c.wrong(path, "budget: give workload and amount")
	}
	if d.money, err = money(s.Amount); err != nil {
		return c.wrong(path+".amount", "budget: amount %v", err)
	}
	d.about, err = c.text(path+".workload", s.Workload)
	return err
}

// money reads "20 USD".
func money(s string) (fleet.Money, error) {
	n, currency, _ := strings.Cut(strings.TrimSpace(s), " ")
	a, err := decimal.NewFromString(n)
	if err != nil || !a.IsPositive() || len(n) > 20 || a.Exponent() > 9 || currency != "" && !strings.EqualFold(currency, "USD") {
		return fleet.Money{}, fmt.Errorf("%q: want an amount such as 20 USD", s)
	}
	return fleet.Money{Amount: a, Currency: fleet.USD}, nil
}

// work reads a submit or a scale.
func (c *reader) work(d *deed, path string, w work) (err error) {
	if d.file, err = c.workload(path, w); err != nil {
		return err
	}
	m, err := money(w.Budget)
	if err != nil {
		return c.wrong(path+".budget", "budget: a rule spends nothing without a bound for each workload: %v", err)
	}
	d.budget = fleet.Known(m)
	d.work = w
	if d.about, err = c.text(path+".name", w.Name); err != nil {
		return err
	}
	scale := strings.HasSuffix(path, ".scale")
	switch {
	case w.Name == "":
		return c.wrong(path, "give the name that it gets")
	case !scale && (w.Add != nil || w.To != nil || w.Min != 0 || w.Max != 0):
		return c.wrong(path, "add, to, min and max are scale's")
	case scale && (w.Add == nil) == (w.To == nil):
		return c.wrong(path, "scale: give add or to")
	case scale && (w.Min < 0 || w.Max < max(w.Min, 1) || w.Max > 1000):
		return c.wrong(path, "scale: give max, 1 to 1000 and no less than min")
	case scale && !plainName.MatchString(w.Name):
		return c.wrong(path+".name", "scale: name %q: want a-z, 0-9 and '-'; replicas are NAME-r1 and so on", w.Name)
	}
	return nil
}

// workload is the file that is asked for, read while somebody can still be told that it is wrong.
func (c *reader) workload(path string, w work) (b []byte, err error) {
	switch {
	case (w.File == "") == (len(w.Spec) == 0):
		return nil, c.wrong(path, "give file, or spec with what would be in it")
	case w.File != "":
		if c.o.Open == nil {
			return nil, c.wrong(path+".file", "file: there are no files here; give spec")
		}
		if b, err = c.o.Open(w.File); err != nil {
			return nil, c.wrong(path+".file", "file: %v", err)
		}
	default:
		if b, err = yaml.Marshal(w.Spec); err != nil {
			return nil, c.wrong(path+".spec", "spec: %v", err)
		}
	}
	if len(b) > maxWorkload {
		return nil, c.wrong(path, "a workload file of %d bytes is too large for a rule; %d at most", len(b), maxWorkload)
	}
	if c.o.Look != nil {
		if err := c.o.Look(or(w.File, "spec"), b); err != nil {
			return nil, c.wrong(path, "%v", err)
		}
	}
	return b, nil
}

// maxWorkload keeps what is asked for within one message.
const maxWorkload = 64 << 10

// expr is an expression, compiled for each kind of fact that it may meet ("" is none).
type expr map[events.Kind]cel.Program

// text is words with expressions in them: {{ fact.workload }}.
type text struct {
	words []string // one more than exprs
	exprs []expr
}

var inText = regexp.MustCompile(`\{\{(.*?)\}\}`)

// text reads words.
func (c *reader) text(path, s string) (t text, err error) {
	last := 0
	for _, at := range inText.FindAllStringSubmatchIndex(s, -1) {
		x, err := c.compile(path, s[at[2]:at[3]], 1+strings.Count(s[:at[2]], "\n"), at[2]-1-strings.LastIndex(s[:at[2]], "\n"), nil)
		if err != nil {
			return t, err
		}
		t.words, t.exprs, last = append(t.words, s[last:at[0]]), append(t.exprs, x), at[1]
	}
	t.words = append(t.words, s[last:])
	return t, nil
}

// Bounds of an expression: how much it may do on one fact, in cel's own units, a few nanoseconds each.
const maxCost = 200_000

// compile reads one expression. line and column are where it begins in its field's text.
func (c *reader) compile(path, s string, line, column int, want *types.Type) (expr, error) {
	out := expr{}
	kinds := c.rule.kinds
	if len(kinds) == 0 {
		kinds = []events.Kind{""}
	}
	for _, k := range kinds {
		env, err := c.env(k)
		if err != nil {
			return nil, err
		}
		ast, issues := env.Compile(s)
		if issues.Err() != nil {
			first := issues.Errors()[0]
			at := first.Location
			l, col := line+at.Line()-1, at.Column()
			if line == 0 {
				l = at.Line()
			}
			if at.Line() <= 1 {
				col += column
			}
			return nil, c.at(c.path+path, c.rule.name, strings.TrimPrefix(path, ".")+": "+c.explain(first.Message, k), l, col)
		}
		if want != nil && ast.OutputType() != want {
			return nil, c.wrong(path, "%s: it is %s, and must be true or false", strings.TrimPrefix(path, "."), ast.OutputType())
		}
		if out[k], err = env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost)); err != nil {
			return nil, c.wrong(path, "%s: %v", strings.TrimPrefix(path, "."), err)
		}
	}
	return out, nil
}

var undeclared = regexp.MustCompile(`undeclared reference to '([^']+)'`)

// explain says what there would have been.
func (c *reader) explain(message string, kind events.Kind) string {
	message = oneLine(message)
	if m := undeclared.FindStringSubmatch(message); m != nil {
		names := append([]string{}, variables...)
		if kind != "" {
			names = append(names, "fact")
		}
		return fmt.Sprintf("%q is not known here; there are %s", m[1], strings.Join(names, ", "))
	}
	if field, ok := strings.CutPrefix(message, "undefined field '"); ok {
		return fmt.Sprintf("there is no field %q%s", strings.TrimSuffix(field, "'"), c.fieldsOf(kind))
	}
	return message
}

func (c *reader) fieldsOf(kind events.Kind) string {
	if kind == "" {
		return ""
	}
	return fmt.Sprintf("; %s has %s", kind, c.set.fields.say(c.set.fields.of(reflect.New(c.o.Kind[kind]).Elem().Interface()).TypeName()))
}

// variables are what every expression may name.
var variables = []string{"fleet", "workload", "machine", "now", "today", "kind", "key", "source", "dry"}

func (c *reader) environment() (*cel.Env, error) {
	f := c.set.fields
	env, err := cel.NewEnv(
		cel.CustomTypeProvider(f), cel.CustomTypeAdapter(f), cel.CrossTypeNumericComparisons(true), cel.ParserExpressionSizeLimit(8<<10),
		cel.Variable("fleet", f.of(View{})), cel.Variable("workload", f.of(Workload{})), cel.Variable("machine", f.of(Machine{})),
		cel.Variable("now", cel.TimestampType), cel.Variable("today", cel.StringType), cel.Variable("kind", cel.StringType),
		cel.Variable("key", cel.StringType), cel.Variable("source", cel.StringType), cel.Variable("dry", cel.BoolType),
	)
	if err != nil {
		return nil, fmt.Errorf("rules: %w", err)
	}
	return env, nil
}

// env is the environment in which fact is of one kind.
func (c *reader) env(kind events.Kind) (*cel.Env, error) {
	if kind == "" {
		return c.base, nil
	}
	if e := c.envs[kind]; e != nil {
		return e, nil
	}
	e, err := c.base.Extend(cel.Variable("fact", c.set.fields.of(reflect.New(c.o.Kind[kind]).Elem().Interface())))
	if err != nil {
		return nil, fmt.Errorf("rules: %s: %w", kind, err)
	}
	c.envs[kind] = e
	return e, nil
}

// Hears are the kinds that wake the rules.
func (s *Set) Hears() []events.Kind {
	kinds := slices.Sorted(maps.Keys(s.byKind))
	if s.prices && s.byKind["price.changed"] == nil {
		kinds = append(kinds, "price.changed")
	}
	return append(kinds, "clock.ticked")
}

var _ ref.Val = object{}
