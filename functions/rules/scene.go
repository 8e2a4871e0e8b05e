package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"lowtide/events"
	"lowtide/shared/fleet"
)

// scene is what an expression is looked at with: a fact, the fleet and the time. It is made once for all rules.
type scene struct {
	kind events.Kind // "": no fact
	key  string
	src  string
	dry  bool
	now  time.Time
	zone *time.Location
	fact any // pointer to the fact
	view *View

	same     string // digest of the fact
	found    bool
	workload *Workload
	machine  *Machine
}

// of makes the scene of an event.
func sceneOf(e events.Event, now time.Time, v *View) *scene {
	s := &scene{kind: e.Data.Kind(), key: e.Data.Key(), src: e.Source, dry: e.Dry, now: now, view: v}
	p := reflect.New(reflect.TypeOf(e.Data)) // addressable, so that its parts are read without a copy
	p.Elem().Set(reflect.ValueOf(e.Data))
	s.fact = p.Interface()
	return s
}

// marks are the fields by which a fact tells one run, machine or moment from all others. A fact without any, such as a pause, is
// news each time that it is heard.
var marks = []string{"Epoch", "Nonce", "Plan", "EndsBy", "Since", "Began"}

// digest names what the fact says, "" for one without a mark. How often it was said before is no part of it.
func (s *scene) digest() string {
	if s.same != "" {
		return s.same
	}
	marked := func(field string) bool {
		f := reflect.ValueOf(s.fact).Elem().FieldByName(field)
		return f.IsValid() && !f.IsZero()
	}
	if !slices.ContainsFunc(marks, marked) {
		return ""
	}
	v := reflect.New(reflect.TypeOf(s.fact).Elem()).Elem()
	v.Set(reflect.ValueOf(s.fact).Elem())
	if n := v.FieldByName("Attempt"); n.IsValid() && n.CanInt() {
		n.SetInt(0)
	}
	b, err := json.Marshal(v.Interface())
	if err != nil {
		return s.src // facts are plain data, and always encode
	}
	sum := sha256.Sum256(append([]byte(s.kind+" "), b...))
	s.same = hex.EncodeToString(sum[:8])
	return s.same
}

// ResolveName is cel's.
func (s *scene) ResolveName(name string) (any, bool) {
	switch name {
	case "fact":
		return s.fact, s.fact != nil
	case "fleet":
		return s.view, true
	case "workload":
		s.find()
		return s.workload, true
	case "machine":
		s.find()
		return s.machine, true
	case "now":
		return s.now, true
	case "today":
		return s.now.In(s.in()).Format(time.DateOnly), true
	case "kind":
		return string(s.kind), true
	case "key":
		return s.key, true
	case "source":
		return s.src, true
	case "dry":
		return s.dry, true
	}
	return nil, false
}

// Parent is cel's: there is none.
func (s *scene) Parent() cel.Activation { return nil }

func (s *scene) in() *time.Location {
	if s.zone == nil {
		return time.UTC
	}
	return s.zone
}

// find looks up whom the fact is about: a workload and the machine under it, or a machine and the workload on it.
func (s *scene) find() {
	if s.found {
		return
	}
	s.found, s.workload, s.machine = true, &Workload{}, &Machine{}
	if s.fact == nil {
		return
	}
	w, m := about(s.fact)
	if x := s.view.Machines[m]; x != nil {
		s.machine = x
		w = or(w, x.Workload)
	}
	x := s.view.Workloads[w]
	if x == nil {
		return
	}
	s.workload = x
	if on := s.view.Machines[x.On]; on != nil && m == "" {
		s.machine = on
	}
}

// about are the names in a fact.
func about(fact any) (workload, machine string) {
	v := reflect.ValueOf(fact).Elem()
	word := func(v reflect.Value, field string) string {
		if f := v.FieldByName(field); f.IsValid() && f.Kind() == reflect.String {
			return f.String()
		}
		return ""
	}
	workload, machine = word(v, "Workload"), word(v, "Machine")
	if p := v.FieldByName("Plan"); workload == "" && p.IsValid() && p.Kind() == reflect.Struct {
		workload = word(p, "Workload")
	}
	if p := v.FieldByName("Spec"); workload == "" && p.IsValid() && p.Kind() == reflect.Struct {
		workload = word(p, "Name")
	}
	return workload, machine
}

// holds says whether a condition is true. What is not known makes nothing true; any other error is the rule's.
func (x expr) holds(s *scene) (bool, error) {
	if x == nil {
		return true, nil
	}
	v, err := x.value(s)
	if err != nil {
		if unknown(err) {
			return false, nil
		}
		return false, err
	}
	return v == types.True, nil
}

func (x expr) value(s *scene) (ref.Val, error) {
	p := x[s.kind]
	if p == nil {
		return nil, fmt.Errorf("it was not made for %q", s.kind)
	}
	v, _, err := p.Eval(s)
	return v, err
}

// unknown says that an error is a value that is not there. For a map without a key cel has no error of its own to ask
// for; its text is held by a test.
func unknown(err error) bool {
	return errors.Is(err, errUnknown) || strings.Contains(err.Error(), errUnknown.Error()) || strings.HasPrefix(err.Error(), "no such key")
}

// say fills a text in. What is not known is "unknown".
func (t text) say(s *scene) (string, error) {
	var b strings.Builder
	for i, w := range t.words {
		b.WriteString(w)
		if i == len(t.exprs) {
			break
		}
		v, err := t.exprs[i].value(s)
		switch {
		case err != nil && unknown(err):
			b.WriteString("unknown")
		case err != nil:
			return "", err
		default:
			b.WriteString(s.show(v))
		}
	}
	return b.String(), nil
}

// show prints a value for people: amounts with at most four digits, times in the rule's zone.
func (s *scene) show(v ref.Val) string {
	switch x := v.Value().(type) {
	case float64:
		return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.4f", x), "0"), ".")
	case time.Time:
		return x.In(s.in()).Format("2006-01-02 15:04 MST")
	case time.Duration:
		return x.Round(time.Second).String()
	case fleet.Money:
		return x.String()
	}
	if o, ok := v.(object); ok {
		return o.shape.name
	}
	return fmt.Sprint(v.Value())
}
