package fleet_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
)

var keep = flag.String("keep", "", "write testdata/kept/<name>.fleet and .json from the types of now; an existing file is never written over")

// fill gives every field a value that is not zero.
func fill(v reflect.Value, name string) {
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
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
			v.SetBytes([]byte(name))
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
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), v.Type().Field(i).Name)
			}
		}
	default:
		panic("fill: " + v.Kind().String())
	}
}

// TestEveryStateThatWasEverSavedIsStillRead: testdata/kept holds a fleet with every field set, as versions before saved it, and
// what they meant by it as JSON. No file is ever altered or removed. Where a field is added, -keep writes the next.
func TestEveryStateThatWasEverSavedIsStillRead(t *testing.T) {
	if *keep != "" {
		write(t, filepath.Join("testdata", "kept", *keep))
	}
	files, err := filepath.Glob("testdata/kept/*.fleet")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		f, err := fleet.Decode(b)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		meant, err := os.ReadFile(strings.TrimSuffix(file, ".fleet") + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var was, is map[string]any
		now, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(meant, &was) != nil || json.Unmarshal(now, &is) != nil {
			t.Fatalf("%s: not JSON", file)
		}
		lost(t, file, was, is)
		again, err := new(fleet.Encoder).Encode(f)
		if err != nil {
			t.Fatal(err)
		}
		if g, err := fleet.Decode(again); err != nil || !reflect.DeepEqual(f, g) {
			t.Errorf("%s: saved again it is another: %v", file, err)
		}
	}
}

// lost tells what of then is not, or not the same, now. What is new is no loss.
func lost(t *testing.T, where string, was, is any) {
	t.Helper()
	switch was := was.(type) {
	case map[string]any:
		now, _ := is.(map[string]any)
		for k, v := range was {
			lost(t, where+"."+k, v, now[k])
		}
	default:
		if !reflect.DeepEqual(was, is) {
			t.Errorf("%s was %v, is %v", where, was, is)
		}
	}
}

func write(t *testing.T, name string) {
	t.Helper()
	f := fleet.New("team-a", "0123456789ab")
	fill(reflect.ValueOf(f).Elem(), "fleet")
	b, err := new(fleet.Encoder).Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for ext, val := range map[string][]byte{".fleet": b, ".json": append(bytes.TrimSpace(plain), '\n')} {
		file, err := os.OpenFile(name+ext, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(val); err != nil || file.Close() != nil {
			t.Fatal(err)
		}
	}
}
