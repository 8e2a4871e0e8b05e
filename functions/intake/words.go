package intake

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// words says in one line what is wrong with a file that is not one of ours: the field, what it wants, and where.
func words(err error, text []byte) error {
	var bad yaml.Error
	if !errors.As(err, &bad) || bad.GetToken() == nil {
		return errors.New(oneLine(err.Error()))
	}
	at := bad.GetToken().Position.Line
	where := fmt.Sprintf("line %d: ", at)
	name := keyOf(text, at)
	var unknown *yaml.UnknownFieldError
	var mistyped *yaml.TypeError
	var shape *yaml.UnexpectedNodeTypeError
	switch {
	case errors.As(err, &unknown):
		return errors.New(where + oneLine(bad.GetMessage()) + meant(name))
	case errors.As(err, &mistyped) && name != "":
		return fmt.Errorf("%sfield %s: want %s", where, name, kind(mistyped.DstType.Kind()))
	case errors.As(err, &shape) && name != "":
		return fmt.Errorf("%sfield %s: want a %s and got a %s", where, name, plain(shape.Expected.String()), plain(shape.Actual.String()))
	case !strings.Contains(string(text), "name:"):
		return errors.New(where + oneLine(bad.GetMessage()) + "; is this a workload file? See the README's example")
	}
	return errors.New(where + oneLine(bad.GetMessage()))
}

// keyOf is the field of a line; "" if the line has none.
func keyOf(text []byte, line int) string {
	lines := strings.Split(string(text), "\n")
	if line < 1 || line > len(lines) {
		return ""
	}
	key, _, found := strings.Cut(lines[line-1], ":")
	if !found {
		return ""
	}
	return strings.TrimLeft(key, " \t-")
}

// kind says what a scalar field takes.
func kind(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list such as [a, b]"
	case reflect.Map, reflect.Struct:
		return "fields of its own, indented below it"
	}
	return "a whole number"
}

// plain is the library's name of a shape, as people say it.
func plain(s string) string {
	switch strings.ToLower(s) {
	case "sequence":
		return "list such as [a, b]"
	case "mapping":
		return "block of fields, indented below it"
	case "string":
		return "single text"
	}
	return strings.ToLower(s)
}

// meant suggests the field of the file that is nearest to a name that is none, if one is near.
func meant(name string) string {
	best, least := "", 3
	for _, field := range fields(reflect.TypeFor[file]()) {
		if d := distance(name, field); d < least {
			best, least = field, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// fields are the names that a struct has in YAML, those of structs in it too.
func fields(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if tag, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); tag != "" && tag != "-" {
			names = append(names, tag)
		}
		if f.Type.Kind() == reflect.Struct {
			names = append(names, fields(f.Type)...)
		}
	}
	return names
}

// distance is how many letters must be put in, taken out or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := slices.Clone(row)
		row[0] = i + 1
		for j := range len(b) {
			replaced := before[j]
			if a[i] != b[j] {
				replaced++
			}
			row[j+1] = min(replaced, before[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
