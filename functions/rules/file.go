package rules

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile is the largest rules file.
const maxFile = 1 << 20

// file is the rules file; the README explains it field by field.
type file struct {
	Timezone string  `yaml:"timezone"`
	Role     string  `yaml:"role"`
	Dry      bool    `yaml:"dry"`
	Rules    []entry `yaml:"rules"`
}

type entry struct {
	Name     string `yaml:"name"`
	Fact     words  `yaml:"fact"`
	When     string `yaml:"when"`
	For      string `yaml:"for"`
	At       string `yaml:"at"`
	During   string `yaml:"during"`
	Every    string `yaml:"every"`
	Timezone string `yaml:"timezone"`
	Role     string `yaml:"role"`
	Dry      bool   `yaml:"dry"`
	Off      bool   `yaml:"off"`
	Do       []step `yaml:"do"`
	After    []step `yaml:"after"`
}

// step is one act; exactly one of its fields is given.
type step struct {
	Notify     *note     `yaml:"notify"`
	Webhook    *hook     `yaml:"webhook"`
	Pause      string    `yaml:"pause"`
	Resume     string    `yaml:"resume"`
	Checkpoint string    `yaml:"checkpoint"`
	Replan     string    `yaml:"replan"`
	Stop       string    `yaml:"stop"`
	Budget     *spending `yaml:"budget"`
	Submit     *work     `yaml:"submit"`
	Scale      *work     `yaml:"scale"`
}

type note struct {
	Text     string `yaml:"text"`
	Severity string `yaml:"severity"`
}

type hook struct {
	URL    string `yaml:"url"`
	Secret string `yaml:"secret"`
	Bearer string `yaml:"bearer"`
	Text   string `yaml:"text"`
}

type spending struct {
	Workload string `yaml:"workload"`
	Amount   string `yaml:"amount"`
}

// work is a workload that a rule has run: once under a name (submit), or as replicas of it (scale).
type work struct {
	Name   string         `yaml:"name"`
	File   string         `yaml:"file"`
	Spec   map[string]any `yaml:"spec"`
	Budget string         `yaml:"budget"`
	Add    *int           `yaml:"add"`
	To     *int           `yaml:"to"`
	Min    int            `yaml:"min"`
	Max    int            `yaml:"max"`
}

// words are one word or a list.
type words []string

// UnmarshalYAML takes both forms.
func (w *words) UnmarshalYAML(b []byte) error {
	if yaml.Unmarshal(b, (*[]string)(w)) == nil {
		return nil
	}
	var one string
	if err := yaml.Unmarshal(b, &one); err != nil {
		return errors.New("want one kind of fact, or a list of them")
	}
	*w = words{one}
	return nil
}

// UnmarshalYAML takes a text alone, too.
func (n *note) UnmarshalYAML(b []byte) error {
	type whole note
	if yaml.Unmarshal(b, &n.Text) == nil {
		return nil
	}
	return yaml.UnmarshalWithOptions(b, (*whole)(n), yaml.Strict())
}

// source is a file's text, for errors that name a line.
type source struct {
	name string
	tree *ast.File
}

// Problem is what is wrong with a rules file, and where.
type Problem struct {
	File         string
	Line, Column int // 0: not known
	Rule         string
	Why          string
}

// Error is one line: file:line:column: rule: why.
func (p Problem) Error() string {
	at := p.File
	if p.Line > 0 {
		at += fmt.Sprintf(":%d:%d", p.Line, p.Column)
	}
	if p.Rule != "" {
		return at + ": rule " + p.Rule + ": " + p.Why
	}
	return at + ": " + p.Why
}

// at is the problem of what lies at a path, such as $.rules[0].when; more is how far into its text.
func (s source) at(path, rule, why string, line, column int) error {
	p := Problem{File: s.name, Rule: rule, Why: why}
	for ; p.Line == 0 && path != ""; path = path[:max(strings.LastIndexAny(path, ".["), 0)] {
		p.Line, p.Column = s.place(path, line, column)
		line, column = 0, 0 // a parent's place is its own
	}
	return p
}

// place finds a path in the text; 0 where there is nothing.
func (s source) place(path string, line, column int) (int, int) {
	q, err := yaml.PathString(path)
	if err != nil || s.tree == nil {
		return 0, 0
	}
	n, err := q.FilterFile(s.tree)
	if err != nil || n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0, 0
	}
	if l, ok := n.(*ast.LiteralNode); ok && l.Value != nil { // a block begins on the next line, at its own indent
		return l.Start.Position.Line + max(line, 1), column + 1
	}
	at := n.GetToken().Position
	if line <= 1 {
		return at.Line, at.Column + column
	}
	return at.Line + line - 1, column + 1
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// read reads the text into a file. Its errors name lines and repeat no value that came from a variable.
func read(name string, b []byte, env func(string) (string, bool)) (f file, s source, err error) {
	s.name = name
	if len(b) > maxFile || !utf8.Valid(b) {
		return f, s, Problem{File: name, Why: "too large, or not UTF-8"}
	}
	var missing, hidden []string
	text := variable.ReplaceAllStringFunc(string(b), func(ref string) string {
		key := variable.FindStringSubmatch(ref)[1]
		v, ok := "", false
		if env != nil {
			v, ok = env(key)
		}
		if !ok {
			missing = append(missing, key)
		}
		if strings.ContainsAny(v, "\"\\\n\r'{}") {
			missing = append(missing, key+" (it holds a quote, a brace, a backslash or a line break)")
		}
		hidden = append(hidden, v)
		return v
	})
	if len(missing) > 0 {
		return f, s, Problem{File: name, Why: "variable " + strings.Join(missing, ", ") + " is not set, or cannot be used"}
	}
	defer func() {
		if p := recover(); p != nil { // the library does, on some texts that fuzzing found
			err = Problem{File: name, Why: "it cannot be read as YAML"}
		}
	}()
	if s.tree, err = parser.ParseBytes([]byte(text), 0); err != nil {
		return f, s, yamlProblem(name, err, hidden)
	}
	err = yaml.NewDecoder(strings.NewReader(text), yaml.Strict(), yaml.DisallowUnknownField()).Decode(&f)
	if err != nil && err.Error() != "EOF" {
		return f, s, yamlProblem(name, err, hidden)
	}
	return f, s, nil
}

// yamlProblem says where a file is wrong. What came from variables is taken out: it may stand where a field belongs.
func yamlProblem(name string, err error, hidden []string) error {
	p := Problem{File: name, Why: "not YAML, an unknown field, or a value of another kind than belongs here"}
	var at yaml.Error
	if !errors.As(err, &at) {
		return p
	}
	if t := at.GetToken(); t != nil && t.Position != nil {
		p.Line, p.Column = t.Position.Line, t.Position.Column
	}
	var unknown *yaml.UnknownFieldError
	var syntax *yaml.SyntaxError
	switch { // these name fields and signs, and no value
	case errors.As(err, &unknown):
		p.Why = oneLine(unknown.Message)
	case errors.As(err, &syntax):
		p.Why = "not YAML: " + oneLine(syntax.Message) + "; an expression with quotes goes into '…', or after | on a line of its own"
	}
	for _, v := range hidden {
		if v != "" {
			p.Why = strings.ReplaceAll(p.Why, v, "…")
		}
	}
	return p
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
