package settings

import "reflect"

// each calls do with every string of v, a pointer to plain data.
func each(v any, do func(*string)) { walk(reflect.ValueOf(v), do) }

func walk(v reflect.Value, do func(*string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), do)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			walk(v.Field(i), do)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), do)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if e := v.MapIndex(k); e.Kind() == reflect.Pointer {
				walk(e, do)
			} else if e.Kind() == reflect.String {
				s := e.String()
				do(&s)
				v.SetMapIndex(k, reflect.ValueOf(s))
			}
		}
	case reflect.String:
		s := v.String()
		do(&s)
		v.SetString(s)
	}
}
