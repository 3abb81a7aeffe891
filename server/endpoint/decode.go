package endpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tenurehq/tenure/api"
)

// bodyTime bounds how long a body may take to arrive where the operation does
// not say so.
const bodyTime = 10 * time.Second

// input is what an operation takes.
type input struct {
	params   []param
	body     int // index of the field Body; -1 if there is none
	maxBytes int64
	time     time.Duration
}

// param is one parameter of the path or the query.
type param struct {
	name  string
	path  bool // otherwise of the query
	index int  // of the field
	must  bool
	rng   numbers
}

// describe reads the input type and puts it into op.
func describe[I any](a huma.API, op *huma.Operation) input {
	in := input{body: -1, maxBytes: op.MaxBodyBytes, time: op.BodyReadTimeout}
	if in.maxBytes <= 0 {
		in.maxBytes = MaxBody
	}
	if in.time <= 0 {
		in.time = bodyTime
	}
	schemas := a.OpenAPI().Components.Schemas
	for i, t := 0, reflect.TypeFor[I](); i < t.NumField(); i++ {
		f := t.Field(i)
		if f.Name == "Body" {
			in.body = i
			op.RequestBody = &huma.RequestBody{
				Required: true,
				Content:  map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(f.Type, true, f.Type.Name())}},
			}
			continue
		}
		p := param{index: i, rng: rangeOf(f), must: f.Tag.Get("required") == "true"}
		where := "query"
		if p.name = f.Tag.Get("path"); p.name != "" {
			p.path, p.must, where = true, true, "path"
		} else if p.name = f.Tag.Get("query"); p.name == "" {
			panic(fmt.Sprintf("endpoint: field %s of %s is neither the body nor a parameter", f.Name, t)) // a defect of the caller, seen at start
		}
		schema := huma.SchemaFromField(schemas, f, "")
		schema.Nullable = false
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: where, Required: p.must, Description: f.Tag.Get("doc"), Schema: schema})
		in.params = append(in.params, p)
	}
	return in
}

// decode fills v from r, or returns why it cannot as an *api.Error.
func (in *input) decode(w http.ResponseWriter, r *http.Request, v reflect.Value) error {
	if err := in.decodeParams(r, v); err != nil {
		return err
	}
	if in.body < 0 {
		return nil
	}
	return readJSON(w, r, in.maxBytes, in.time, v.Field(in.body))
}

func (in *input) decodeParams(r *http.Request, v reflect.Value) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return api.RefuseInvalid("query", shorten(r.URL.RawQuery), "key=value pairs, percent-encoded, joined by &")
	}
	seen := 0
	for i := range in.params {
		p := &in.params[i]
		var text string
		if p.path {
			text = r.PathValue(p.name)
		} else {
			values, ok := query[p.name]
			if !ok {
				if p.must {
					return api.RefuseInvalid(p.name, "", "required in the query")
				}
				continue
			}
			seen++
			if len(values) != 1 {
				return api.RefuseInvalid(p.name, shorten(strings.Join(values, " ")), "once in the query")
			}
			text = values[0]
		}
		if err := p.set(v.Field(p.index), text); err != nil {
			return err
		}
	}
	if seen == len(query) {
		return nil
	}
	for name := range query {
		if !in.takes(name) {
			return api.RefuseInvalid(shorten(name), shorten(query.Get(name)), "no parameter of this request")
		}
	}
	return nil
}

func (in *input) takes(name string) bool {
	for _, p := range in.params {
		if p.name == name && !p.path {
			return true
		}
	}
	return false
}

func (p *param) set(f reflect.Value, text string) error {
	switch f.Kind() {
	case reflect.String:
		f.SetString(text)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || !p.rng.holds(n) {
			return api.RefuseInvalid(p.name, shorten(text), p.rng.rule())
		}
		f.SetInt(n)
	case reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return api.RefuseInvalid(p.name, shorten(text), "a whole number from 0 to 18446744073709551615")
		}
		f.SetUint(n)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return api.RefuseInvalid(p.name, shorten(text), "true or false")
		}
		f.SetBool(text == "true")
	default:
		return fmt.Errorf("endpoint: parameter %s has the kind %s, which no query can hold", p.name, f.Kind())
	}
	return nil
}

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// readJSON reads the body of r, one JSON object, into v.
func readJSON(w http.ResponseWriter, r *http.Request, most int64, patience time.Duration, v reflect.Value) error {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return api.Refuse(api.CodeMediaType, "the body must be declared as Content-Type: application/json")
	}
	buf := buffers.Get().(*bytes.Buffer)
	defer func() {
		if buf.Cap() <= 1<<20 { // one large request does not stay in memory
			buf.Reset()
			buffers.Put(buf)
		}
	}()
	ctl := http.NewResponseController(w)
	_ = ctl.SetReadDeadline(time.Now().Add(patience)) // a writer that cannot has the server's own limit
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return api.Refuse(api.CodeTooLarge, "the body is larger than %d bytes", most)
		}
		return api.RefuseInvalid("body", "", fmt.Sprintf("a whole body within %s", patience))
	}
	_ = ctl.SetReadDeadline(time.Time{})
	return unmarshal(buf.Bytes(), v)
}

func unmarshal(body []byte, v reflect.Value) error {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	if len(trimmed) == 0 || trimmed[0] != '{' {
		return api.RefuseInvalid("body", shorten(string(trimmed)), "one JSON object")
	}
	if !utf8.Valid(body) {
		return api.RefuseInvalid("body", "", "UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v.Addr().Interface()); err != nil {
		return refuseJSON(err, v.Type())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return api.RefuseInvalid("body", shorten(string(body[d.InputOffset():])), "one JSON object and nothing after it")
	}
	return checkRanges(v, "")
}

func refuseJSON(err error, t reflect.Type) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return api.RefuseInvalid(wrong.Field, strings.TrimPrefix(wrong.Value, "number "), ruleAt(t, wrong.Field, wrong.Type))
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		name, unquoteErr := strconv.Unquote(field)
		if unquoteErr != nil {
			name = field
		}
		return api.RefuseInvalid(shorten(name), "", "no field of this request")
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return api.RefuseInvalid("body", "", fmt.Sprintf("JSON, and at byte %d it is not: %s", syntax.Offset, syntax))
	}
	return api.RefuseInvalid("body", "", err.Error())
}

func shorten(s string) string {
	const most = 64
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Decode reads one JSON object into what v points to, with the rules and the
// refusals of an operation's body.
func Decode(body []byte, v any) error { return unmarshal(body, reflect.ValueOf(v).Elem()) }
