package events_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"lowtide/events"
	"lowtide/shared/fleet"
)

var update = flag.Bool("update", false, "write new golden files; never rewrites an old one's meaning unseen: read the diff")

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fill gives every field of a fact a value that is not zero, so that a golden file shows the whole wire form.
func fill(v reflect.Value, name string) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = t0
		return
	case *decimal.Decimal:
		*x = decimal.RequireFromString("3.06")
		return
	case *fleet.Maybe[fleet.Money]:
		*x = fleet.Known(fleet.Dollars(3.06))
		return
	case *fleet.Maybe[int]:
		*x = fleet.Known(2)
		return
	case *fleet.Maybe[float64]:
		*x = fleet.Known(0.5)
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.ToLower(name))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(strings.ToLower(name)))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), name)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, "key")
		fill(e, "value")
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), name)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), v.Type().Field(i).Name)
		}
	default:
		panic("fill: " + v.Kind().String())
	}
}

func TestEveryKindHasAGoldenFileThatDecodesToItself(t *testing.T) {
	for kind, typ := range events.Kinds() {
		p := reflect.New(typ)
		fill(p.Elem(), "x")
		e := events.New("team-a", "test", t0, p.Elem().Interface().(events.Fact))
		b, err := events.Encode(e)
		if err != nil {
			t.Fatal(err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, b, "", "  "); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", string(kind)+".json")
		if *update {
			if err := os.WriteFile(file, append(pretty.Bytes(), '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(pretty.String()+"\n", string(want)); d != "" {
			t.Errorf("%s: the wire form changed (run with -update and read the diff):\n%s", kind, d)
		}
		got, err := events.Decode(want)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		again, err := events.Encode(got)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: decoded and encoded again it is\n%s\nnot\n%s", kind, again, b)
		}
	}
}

func TestUnknownKindsAndFieldsPassThroughUnchanged(t *testing.T) {
	const later = `{"specversion":"1.0","id":"1","type":"lowtide.%s","source":"s","subject":"m1","time":"2026-03-01T12:00:00Z","datacontenttype":"application/json","dataversion":1,"fleet":"f","data":%s}`
	for _, c := range [][2]string{
		{"moon.risen", `{"phase":"full"}`},
		{"instance.ready", `{"machine":"m1","moons":3}`},
	} {
		in := strings.Replace(strings.Replace(later, "%s", c[0], 1), "%s", c[1], 1)
		e, err := events.Decode([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		out, err := events.Encode(e)
		if err != nil || string(out) != in {
			t.Errorf("%s: got %s, %v, want %s", c[0], out, err, in)
		}
		if want := "lowtide.f." + c[0] + ".m1"; e.Subject() != want {
			t.Errorf("subject: got %s, want %s", e.Subject(), want)
		}
	}
}

func TestWhatCannotBeReadIsMalformed(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40)
	for name, in := range map[string]string{
		"garbage": "abcd", "truncated": `{"specversion":"1.0","id":`, "not ours": `{"specversion":"1.0","id":"1","fleet":"f","type":"aws.ec2","data":{}}`,
		"no data": `{"specversion":"1.0","id":"1","fleet":"f","type":"lowtide.instance.ready"}`, "deep": deep,
		"wrong type": `{"specversion":"1.0","id":"1","fleet":"f","type":"lowtide.instance.ready","data":{"machine":7}}`,
		"not UTF-8":  "\xff", "large": strings.Repeat(" ", events.MaxBytes+1), "old": `{"specversion":"0.3","id":"1","fleet":"f","type":"lowtide.a.b","data":{}}`,
	} {
		if _, err := events.Decode([]byte(in)); !errors.Is(err, events.ErrMalformed) {
			t.Errorf("%s: got %v, want malformed", name, err)
		}
	}
}

func TestTheIDTellsContentAndSourceApartAndRepeatsAreTheSame(t *testing.T) {
	at := func(src string, ends time.Time) string {
		return events.New("f", src, time.Now(), events.InstanceInterrupted{Machine: "m1", EndsBy: ends}).ID
	}
	same, again, earlier, second := at("a", t0), at("a", t0), at("a", t0.Add(-time.Second)), at("b", t0)
	if same != again {
		t.Error("the same said twice has two ids")
	}
	if same == earlier || same == second {
		t.Error("an earlier deadline, or another source, has the same id and would be dropped")
	}
}

func FuzzDecode(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := events.Decode(b)
		if err != nil {
			return
		}
		again, err := events.Encode(e)
		if err != nil {
			return // it may grow over the limit when its attributes are written out
		}
		if _, err := events.Decode(again); err != nil {
			t.Errorf("%s: does not decode again: %v", again, err)
		}
	})
}
