package rules

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/shopspring/decimal"

	"lowtide/shared/fleet"
)

// errUnknown is what an expression gets for a value that nobody knows. Nothing is true of it.
var errUnknown = errors.New("not known")

// fields lets expressions read Go's structs by the names that their JSON has, checked before anything runs.
//
//	string, bool, int, float64   as they are; named ones too
//	time.Time, time.Duration     timestamp, duration
//	fleet.Money                  double, in USD; of another currency it is not known
//	fleet.Maybe                  the value; has() tells whether it is known
//	structs, slices, maps        by their parts
//
// What is neither of these cannot be read.
type fields struct {
	*types.Registry
	mu    sync.Mutex
	known map[string]*shape // by name
	names map[reflect.Type]*shape
}

// shape is one struct.
type shape struct {
	name   string
	fields map[string]*types.FieldType
}

func newFields() (*fields, error) {
	r, err := types.NewRegistry()
	if err != nil {
		return nil, err
	}
	return &fields{Registry: r, known: map[string]*shape{}, names: map[reflect.Type]*shape{}}, nil
}

// of is the type that expressions see for a struct.
func (f *fields) of(v any) *types.Type {
	f.mu.Lock()
	defer f.mu.Unlock()
	return types.NewObjectType(f.shape(reflect.TypeOf(v)).name)
}

func (f *fields) shape(t reflect.Type) *shape {
	if s := f.names[t]; s != nil {
		return s
	}
	s := &shape{name: path.Base(t.PkgPath()) + "." + t.Name(), fields: map[string]*types.FieldType{}}
	f.names[t], f.known[s.name] = s, s // before its fields: they may lead back to it
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "" || name == "-" {
			continue
		}
		typ, get := f.reader(field.Type)
		if typ == nil {
			continue
		}
		s.fields[name] = &types.FieldType{
			Type: typ,
			GetFrom: func(target any) (any, error) {
				v, err := part(target, i)
				if err != nil {
					return nil, err
				}
				return get(v)
			},
			IsSet: func(target any) bool {
				v, err := part(target, i)
				if err != nil || v.IsZero() {
					return false
				}
				_, err = get(v)
				return err == nil
			},
		}
	}
	return s
}

// part is a field of a struct or of what points to one.
func part(target any, i int) (reflect.Value, error) {
	v := reflect.ValueOf(target)
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || i >= v.NumField() {
		return v, errUnknown
	}
	return v.Field(i), nil
}

var (
	timeType     = reflect.TypeFor[time.Time]()
	durationType = reflect.TypeFor[time.Duration]()
	moneyType    = reflect.TypeFor[fleet.Money]()
	decimalType  = reflect.TypeFor[decimal.Decimal]()
	bytesType    = reflect.TypeFor[[]byte]()
)

type getter func(reflect.Value) (any, error)

func plain(v reflect.Value) (any, error) { return v.Interface(), nil }

// reader is what expressions see of a type, and how it is read; nil for what they cannot.
func (f *fields) reader(t reflect.Type) (*types.Type, getter) {
	switch t {
	case timeType:
		return types.TimestampType, plain
	case durationType:
		return types.DurationType, plain
	case decimalType:
		return types.DoubleType, func(v reflect.Value) (any, error) { return v.Interface().(decimal.Decimal).InexactFloat64(), nil }
	case moneyType:
		return types.DoubleType, func(v reflect.Value) (any, error) { return usd(v.Interface().(fleet.Money)) }
	case bytesType:
		return types.BytesType, plain
	}
	if get, ok := t.MethodByName("Get"); ok && get.Type.NumIn() == 1 && get.Type.NumOut() == 2 && get.Type.Out(1).Kind() == reflect.Bool {
		return f.maybe(get)
	}
	switch t.Kind() {
	case reflect.String:
		return types.StringType, func(v reflect.Value) (any, error) { return v.String(), nil }
	case reflect.Bool:
		return types.BoolType, func(v reflect.Value) (any, error) { return v.Bool(), nil }
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return types.IntType, func(v reflect.Value) (any, error) { return v.Int(), nil }
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return types.IntType, func(v reflect.Value) (any, error) { return int64(v.Uint()), nil } //nolint:gosec // counters of ours, far below
	case reflect.Float32, reflect.Float64:
		return types.DoubleType, func(v reflect.Value) (any, error) { return v.Float(), nil }
	case reflect.Pointer:
		if t.Elem().Kind() == reflect.Struct {
			typ, _ := f.reader(t.Elem())
			return typ, func(v reflect.Value) (any, error) {
				if v.IsNil() {
					return nil, errUnknown
				}
				return v.Interface(), nil
			}
		}
	case reflect.Struct:
		return types.NewObjectType(f.shape(t).name), func(v reflect.Value) (any, error) {
			if v.CanAddr() {
				return v.Addr().Interface(), nil
			}
			return v.Interface(), nil
		}
	case reflect.Slice:
		if elem, get := f.reader(t.Elem()); elem != nil {
			return types.NewListType(elem), f.list(t.Elem(), get)
		}
	case reflect.Map:
		if elem, _ := f.reader(t.Elem()); elem != nil && t.Key().Kind() == reflect.String {
			return types.NewMapType(types.StringType, elem), plain
		}
	}
	return nil, nil
}

// list reads elements one by one where they are not what they seem, such as named strings.
func (f *fields) list(elem reflect.Type, get getter) getter {
	if elem.Kind() == reflect.String && elem.PkgPath() == "" {
		return plain
	}
	return func(v reflect.Value) (any, error) {
		all := make([]any, 0, v.Len())
		for i := range v.Len() {
			x, err := get(v.Index(i))
			if err != nil {
				return nil, err
			}
			all = append(all, x)
		}
		return all, nil
	}
}

// maybe reads a fleet.Maybe through its method.
func (f *fields) maybe(method reflect.Method) (*types.Type, getter) {
	typ, get := f.reader(method.Type.Out(0))
	if typ == nil {
		return nil, nil
	}
	return typ, func(v reflect.Value) (any, error) {
		out := v.Method(method.Index).Call(nil)
		if !out[1].Bool() {
			return nil, errUnknown
		}
		return get(out[0])
	}
}

func usd(m fleet.Money) (any, error) {
	if m.Currency != "" && m.Currency != fleet.USD {
		return nil, fmt.Errorf("%w: an amount in %s", errUnknown, m.Currency)
	}
	return m.Float(), nil
}

// FindStructType is cel's: the type of a name.
func (f *fields) FindStructType(name string) (*types.Type, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known[name] != nil {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return f.Registry.FindStructType(name)
}

// FindStructFieldNames is cel's: what can be read.
func (f *fields) FindStructFieldNames(name string) ([]string, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.known[name]; s != nil {
		return fleet.Sorted(s.fields), true
	}
	return f.Registry.FindStructFieldNames(name)
}

// FindStructFieldType is cel's: how one field is read.
func (f *fields) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.known[name]; s != nil {
		t, ok := s.fields[field]
		return t, ok
	}
	return f.Registry.FindStructFieldType(name, field)
}

// NewValue is cel's: nobody makes facts in an expression.
func (f *fields) NewValue(name string, given map[string]ref.Val) ref.Val {
	f.mu.Lock()
	ours := f.known[name] != nil
	f.mu.Unlock()
	if ours {
		return types.NewErr("%s cannot be made here", name)
	}
	return f.Registry.NewValue(name, given)
}

// NativeToValue is cel's: a struct of ours becomes an object.
func (f *fields) NativeToValue(v any) ref.Val {
	t := reflect.TypeOf(v)
	if t == nil || t == timeType {
		return f.Registry.NativeToValue(v)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	f.mu.Lock()
	s := f.names[t]
	f.mu.Unlock()
	switch {
	case s != nil:
		return object{s, v}
	case t.Kind() == reflect.Map:
		return types.NewDynamicMap(f, v)
	case t.Kind() == reflect.Slice && t != bytesType:
		return types.NewDynamicList(f, v)
	}
	return f.Registry.NativeToValue(v)
}

// object is a struct as a value of cel's.
type object struct {
	shape *shape
	v     any
}

var _ traits.Indexer = object{}

// ConvertToNative gives the struct itself.
func (o object) ConvertToNative(t reflect.Type) (any, error) {
	if reflect.TypeOf(o.v).AssignableTo(t) {
		return o.v, nil
	}
	return nil, fmt.Errorf("%s is no %s", o.shape.name, t)
}

// ConvertToType knows no other type than its own.
func (o object) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return types.NewObjectType(o.shape.name)
	}
	return types.NewErr("%s cannot become %s", o.shape.name, t.TypeName())
}

// Equal compares field by field.
func (o object) Equal(other ref.Val) ref.Val {
	x, ok := other.(object)
	return types.Bool(ok && reflect.DeepEqual(o.v, x.v))
}

// Type is its name.
func (o object) Type() ref.Type { return types.NewObjectType(o.shape.name, traits.IndexerType) }

// Value is the struct.
func (o object) Value() any { return o.v }

// Get reads one field by its name.
func (o object) Get(index ref.Val) ref.Val {
	name, ok := index.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(index)
	}
	f, ok := o.shape.fields[string(name)]
	if !ok {
		return types.NewErr("no such field: %s", name)
	}
	v, err := f.GetFrom(o.v)
	if err != nil {
		return types.WrapErr(err)
	}
	return types.DefaultTypeAdapter.NativeToValue(v)
}

// list of the names that a type has, for whoever mistyped one.
func (f *fields) say(name string) string {
	names, _ := f.FindStructFieldNames(name)
	slices.Sort(names)
	return strings.Join(names, ", ")
}
