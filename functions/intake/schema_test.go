package intake

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// named are the names that the decoder knows, and those below them.
func named(t reflect.Type, prefix string) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := prefix + strings.Split(f.Tag.Get("yaml"), ",")[0]
		out = append(out, name)
		if f.Type.Kind() == reflect.Struct {
			out = append(out, named(f.Type, name+".")...)
		}
	}
	return out
}

// properties are the names that the schema knows.
func properties(schema map[string]any, prefix string) (out []string) {
	props, _ := schema["properties"].(map[string]any)
	for name, p := range props {
		out = append(out, prefix+name)
		below := p.(map[string]any)
		out = append(out, properties(below, prefix+name+".")...)
		forms, _ := below["oneOf"].([]any)
		for _, f := range forms {
			out = append(out, properties(f.(map[string]any), prefix+name+".")...)
		}
	}
	return out
}

func TestSchemaAndDecoderKnowTheSameFields(t *testing.T) {
	var schema map[string]any
	if err := json.Unmarshal(Schema, &schema); err != nil {
		t.Fatal(err)
	}
	has, want := properties(schema, ""), named(reflect.TypeFor[file](), "")
	slices.Sort(has)
	slices.Sort(want)
	if !slices.Equal(has, want) {
		t.Errorf("the schema has %q,\nthe decoder %q", has, want)
	}
}

func compiled(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("workload.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("workload.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchemaAndParseAgree(t *testing.T) {
	s := compiled(t)
	const least = "name: a\nrun: ./a\nwork: 1h\n"
	for file, good := range map[string]bool{
		least: true,
		"name: a\nrun: [./a, 1, true]\nwork: 1h30m\nsetup: [make]\n": true,
		least + "gpus: 8\n": true, least + "gpus: {count: 8, models: [A100], memory: 80GB, nvlink: true, cuda: \"12.4\"}\n": true,
		least + "allow: {clouds: [aws], regions: [\"eu-*\"], certifications: [soc2]}\nborder: cross\n":                   true,
		least + "secrets: {A: \"env:A\", B: \"aws-sm:x#y\"}\nenv: {C: 1}\ntags: {team: a}\n":                             true,
		least + "data: {bucket: \"s3://b/p\", size: 1.5 TiB}\nimage: a/b:1\nverify: {command: \"true\"}\nworkdir: src\n": true,
		least + "deadline: 6h\nbudget: 20 USD\ndeadline_over_budget: true\ncheckpoint: 5m\nautonomy: act\nsteps: 10\n":   true,
		least + "when_idle: smaller\nidle_grace: 1m\nmodels: [V100]\nbudget: 20\n":                                       true,
		"run: ./a\nwork: 1h\n": false, "name: A b\nrun: ./a\nwork: 1h\n": false, "name: a\nrun: \" \"\nwork: 1h\n": false, "name: a\nrun: []\nwork: 1h\n": false,
		least + "gpu: 1\n": false, least + "gpus: 17\n": false, least + "gpus: {size: 1}\n": false, least + "gpus: {cuda: new}\n": false,
		least + "secrets: {A: hunter2}\n": false, least + "env: {LOWTIDE_A: b}\n": false, least + "border: open\n": false, least + "autonomy: yolo\n": false,
		least + "data: {bucket: b, size: 1GB}\n": false, least + "data: {bucket: \"s3://b\", size: much}\n": false, least + "data: {bucket: \"s3://b\"}\n": false,
		least + "image: --privileged\n": false, least + "when_idle: burn\n": false, least + "checkpoint: soon\n": false, least + "steps: -1\n": false,
		least + "verify: {script: x}\n": false, least + "allow: {cloud: [aws]}\n": false,
	} {
		_, err := Parse("w.yaml", []byte(file), time.Now())
		var doc any
		if yerr := yaml.Unmarshal([]byte(file), &doc); yerr != nil {
			t.Fatalf("%v:\n%s", yerr, file)
		}
		b, jerr := json.Marshal(doc)
		if jerr != nil {
			t.Fatal(jerr)
		}
		value, jerr := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		if jerr != nil {
			t.Fatal(jerr)
		}
		serr := s.Validate(value)
		if (err == nil) != good || (serr == nil) != good {
			t.Errorf("%q: Parse says %v, the schema %v; good: %v", file, err, serr, good)
		}
	}
}
