package endpoint

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/api"
)

// numbers is a range of whole numbers, from the tags minimum and maximum, which
// the document shows too.
type numbers struct{ least, most int64 }

func rangeOf(f reflect.StructField) numbers {
	n := numbers{-1 << 63, 1<<63 - 1}
	for tag, bound := range map[string]*int64{"minimum": &n.least, "maximum": &n.most} {
		text, ok := f.Tag.Lookup(tag)
		if !ok {
			continue
		}
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			panic(fmt.Sprintf("endpoint: field %s: %s %q is no whole number", f.Name, tag, text)) // a defect of the type
		}
		*bound = value
	}
	return n
}

func (n numbers) bounded() bool      { return n.least != -1<<63 || n.most != 1<<63-1 }
func (n numbers) holds(i int64) bool { return n.least <= i && i <= n.most }
func (n numbers) rule() string       { return fmt.Sprintf("a whole number from %d to %d", n.least, n.most) }

// checkRanges returns the refusal of the first number in v that is out of its
// range. A field that may be left out is not looked at where it is zero.
func checkRanges(v reflect.Value, path string) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return checkRanges(v.Elem(), path)
	case reflect.Slice:
		if k := v.Type().Elem().Kind(); k != reflect.Struct && k != reflect.Pointer {
			return nil
		}
		for i := range v.Len() {
			if err := checkRanges(v.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			fv, at := v.Field(f.index), path
			if f.name != "" {
				at = strings.TrimPrefix(path+"."+f.name, ".")
			}
			if f.number {
				if i := fv.Int(); !f.rng.holds(i) && (i != 0 || !f.optional) {
					return api.RefuseInvalid(at, strconv.FormatInt(i, 10), f.rng.rule())
				}
				continue
			}
			if err := checkRanges(fv, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// field is a field of a struct that checkRanges looks at.
type field struct {
	index    int
	name     string // in JSON; "" if it is embedded
	number   bool   // with a range
	optional bool
	rng      numbers
}

// fields remembers fieldsOf by type.
var fields sync.Map

func fieldsOf(t reflect.Type) []field {
	if known, ok := fields.Load(t); ok {
		return known.([]field)
	}
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		one := field{index: i, name: name, optional: strings.Contains(options, "omit"), rng: rangeOf(f)}
		switch f.Type.Kind() {
		case reflect.Int, reflect.Int64:
			if one.number = one.rng.bounded(); !one.number {
				continue
			}
		case reflect.Struct, reflect.Pointer, reflect.Slice:
		default:
			continue
		}
		all = append(all, one)
	}
	fields.Store(t, all)
	return all
}

// ruleAt says what JSON the field at path of t takes.
func ruleAt(t reflect.Type, path string, want reflect.Type) string {
	for segment := range strings.SplitSeq(path, ".") {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			break
		}
		f, ok := fieldNamed(t, segment)
		if !ok {
			break
		}
		t = f.Type
		if n := rangeOf(f); n.bounded() {
			return n.rule()
		}
	}
	switch want.Kind() {
	case reflect.Int, reflect.Int64:
		return numbers{-1 << 63, 1<<63 - 1}.rule()
	case reflect.Uint64:
		return "a whole number from 0 to 18446744073709551615"
	case reflect.Bool:
		return "true or false"
	case reflect.String, reflect.Array: // an array is an attempt, which is text
		return "a string"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}
