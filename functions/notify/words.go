package notify

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"text/template"
	"time"

	"lowtide/shared/fleet"
)

// The languages that messages are written in.
const (
	English = "en"
	Chinese = "zh-CN"
)

//go:embed words/*.tmpl
var builtIn embed.FS

// Words turns incidents into text: one template a kind of incident and language, whose first line is the title.
type Words struct {
	sets    map[string]*template.Template // by language
	plain   map[string]*template.Template // as they come with lowtide
	changed bool
}

// NewWords reads the built-in templates, and from own, if it is not nil, files en.tmpl and zh-CN.tmpl whose
// definitions replace built-in ones. What cannot be parsed is an error that names file and line.
func NewWords(own fs.FS) (*Words, error) {
	w := &Words{sets: map[string]*template.Template{}, plain: map[string]*template.Template{}}
	for _, lang := range []string{English, Chinese} {
		for _, into := range []map[string]*template.Template{w.sets, w.plain} {
			t := template.New(lang)
			if _, err := t.Funcs(functions(t, time.UTC)).ParseFS(builtIn, "words/"+lang+".tmpl"); err != nil {
				return nil, fmt.Errorf("words: %w", err)
			}
			into[lang] = t
		}
		if own == nil {
			continue
		}
		b, err := fs.ReadFile(own, lang+".tmpl")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = w.sets[lang].Parse(string(b))
		}
		if err != nil {
			return nil, fmt.Errorf("%s.tmpl: %w", lang, err)
		}
		w.changed = true
	}
	return w, nil
}

// Languages lists what there are words in.
func (w *Words) Languages() []string { return slices.Sorted(maps.Keys(w.sets)) }

// functions are what templates may call. at prints times of the reader's zone.
func functions(t *template.Template, zone *time.Location) template.FuncMap {
	return template.FuncMap{
		"money": func(m fleet.Money) string {
			if m.Currency == "" {
				m.Currency = fleet.USD
			}
			return m.String()
		},
		"at":     func(at time.Time) string { return at.In(zone).Format("01-02 15:04:05 MST") },
		"short":  short,
		"plural": func(n int, one, many string) string { return map[bool]string{true: one, false: many}[n == 1] },
		"first": func(all []*Taken) *Taken {
			if len(all) == 0 {
				return nil
			}
			return all[0]
		},
		"first1": func(all []fleet.Offer) []fleet.Offer { return all[:min(1, len(all))] },
		"stage":  func(s string) (string, error) { return run(t, "stage", s) },
		"end_": func(s string) (string, error) {
			if t.Lookup("end "+s) == nil {
				return s, nil
			}
			return run(t, "end "+s, nil)
		},
	}
}

func run(t *template.Template, name string, data any) (string, error) {
	var b bytes.Buffer
	err := t.ExecuteTemplate(&b, name, data)
	return b.String(), err
}

// interruption adds the sums to an incident's parts.
type interruption struct {
	*Incident
	Taken             []*Taken
	Risk, Hourly, For fleet.Money
	Open, Resumed     int
}

// data is what a template sees of an incident.
func (i *Incident) data() any {
	if i.Kind != "interrupted" {
		return i
	}
	v := interruption{Incident: i}
	for _, t := range i.Taken {
		v.Risk, v.Hourly, v.For = v.Risk.Add(t.Risk), v.Hourly.Add(t.Hourly), v.For.Add(t.For)
		switch t.End {
		case "":
			v.Open++
		case "resumed":
			v.Resumed++
		}
	}
	v.Taken = slices.Clone(i.Taken)
	slices.SortStableFunc(v.Taken, func(a, b *Taken) int { return openFirst(a) - openFirst(b) })
	return v
}

func openFirst(t *Taken) int {
	if t.End == "" {
		return 0
	}
	return 1
}

// Text renders one named piece. A user's template that fails is replaced by the built-in one, and the reason added.
func (w *Words) Text(lang string, zone *time.Location, name string, data any) []string {
	set := w.sets[lang]
	if set == nil {
		lang = English
		set = w.sets[lang]
	}
	text, err := render(set, zone, name, data)
	if err != nil {
		why := err
		if text, err = render(w.plain[lang], zone, name, data); err != nil {
			text = name + ": " + err.Error()
		}
		text += "\n(" + why.Error() + ")"
	}
	var lines []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, clean(l))
		}
	}
	if len(lines) == 0 {
		lines = []string{name}
	}
	return lines
}

func render(set *template.Template, zone *time.Location, name string, data any) (string, error) {
	t, err := set.Clone() // functions belong to a set: another zone needs its own
	if err != nil {
		return "", err
	}
	return run(t.Funcs(functions(t, zone)), name, data)
}

// word is a piece of one line.
func (w *Words) word(r Route, name string, data any) string {
	return strings.Join(w.Text(r.Language, r.Zone, name, data), " ")
}

// Message renders an incident for a route.
func (w *Words) Message(b *Book, i *Incident, r Route) Message {
	lines := w.Text(r.Language, r.Zone, i.Kind, i.data())
	m := Message{
		ID: fmt.Sprintf("%s/%d", b.Fleet, i.Number), Number: i.Number, Version: i.Version, Kind: i.Kind, Severity: i.Severity, Closed: !i.Closed.IsZero(),
		Lines: lines[1:], Fleet: b.Fleet, Opened: i.Opened, Changed: i.Changed, Language: r.Language,
	}
	if about := i.About(); len(about) == 1 {
		m.Workload = about[0]
	}
	m.Title = w.title(i, r, lines[0])
	return m
}

// title is the first line: dry run, number, news.
func (w *Words) title(i *Incident, r Route, line string) string {
	s := fmt.Sprintf("#%d %s", i.Number, line)
	if i.Dry {
		s = w.dry(r) + s
	}
	return s
}

func (w *Words) dry(r Route) string {
	s, err := run(w.sets[r.Language], "dry", nil)
	if err != nil {
		return "DRY RUN: "
	}
	return s
}

// digest is one message for several incidents, gravest first.
func (w *Words) digest(b *Book, all []*Incident, r Route) Message {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(x, y *Incident) int { return int(y.Severity) - int(x.Severity) })
	m := Message{Kind: "digest", Closed: true, Fleet: b.Fleet, Language: r.Language, Opened: all[0].Opened}
	var risk fleet.Money
	for _, i := range all {
		one := w.Message(b, i, r)
		m.Lines = append(m.Lines, one.Title)
		m.Severity, m.Closed, m.Version = max(m.Severity, one.Severity), m.Closed && one.Closed, m.Version+one.Version
		if m.ID == "" || i.Number < m.Number {
			m.ID, m.Number = one.ID, i.Number
		}
		if i.Opened.Before(m.Opened) {
			m.Opened = i.Opened
		}
		if i.Changed.After(m.Changed) {
			m.Changed = i.Changed
		}
		if v, ok := i.data().(interruption); ok {
			risk = risk.Add(v.Risk)
		}
		if i.Dry {
			m.Lines[len(m.Lines)-1] = one.Title
		}
	}
	m.Title = w.word(r, "digest", struct {
		Count int
		Money fleet.Money
	}{len(all), risk})
	return m
}

// short prints a duration the way people say it.
func short(d time.Duration) string {
	switch d = d.Abs(); {
	case d >= time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return d.Round(time.Second).String()
}

// clean takes out what no line of text has: control characters, and marks that turn the direction of writing.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case r < ' ', r == 0x7f, r >= 0x80 && r < 0xa0, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0xfffd:
			return -1
		}
		return r
	}, s)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	s = clean(s[strings.LastIndex(s, "\n")+1:])
	return Cut(s, 200)
}
