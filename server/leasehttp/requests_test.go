package leasehttp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/leasehttp"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// ask sends a request as it is, and returns the status and the body. It follows
// no redirect.
func ask(t *testing.T, method, target, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// refused checks that a request is answered with 400 and returns why.
func refused(t *testing.T, method, target, body string) api.Problem {
	t.Helper()
	status, answer := ask(t, method, target, body)
	var p api.Problem
	if err := json.Unmarshal(answer, &p); err != nil || status != http.StatusBadRequest || p.Code != "invalid" || p.Message == "" {
		t.Errorf("%s %.80s %.120q: got %d %s, want 400 invalid", method, target, body, status, answer)
	}
	return p
}

// unwritten checks that no request of a test wrote to st.
func unwritten(t *testing.T, st *memory.Store, before int64) {
	t.Helper()
	if n := st.Writes() - before; n != 0 {
		t.Errorf("refused requests made %d writes", n)
	}
}

func acquireBody(name, ttl string) string {
	quoted, _ := json.Marshal(name)
	return fmt.Sprintf(`{"name":%s,"holder":"a","attempt":"%s","ttl_us":%s}`, quoted, store.NewAttempt(), ttl)
}

// odd are numbers that bend somewhere: each is granted as it is, or refused.
var odd = []string{"-1", "0", "1", "1e3", "1125899906842624", "9007199254740992", "4611686018427387904", "9223372036854775807", "9223372036854775808",
	"-9223372036854775808", "1e308", "1.5", `"10"`, `"10s"`, `"PT10S"`, `"5m"`, "true", "[]", "{}", "86400000001", "9223372036854776"}

// TestC72: a duration is taken as it is, or refused with the field and the range.
func TestC72(t *testing.T) {
	t.Parallel()
	st := memory.New()
	base := serve(t, st)
	check := func(what, field string, p api.Problem) {
		t.Helper()
		if !strings.HasPrefix(field, p.Field) || p.Field == "" || !strings.Contains(p.Message, p.Field) || !strings.Contains(p.Rule, "from ") || !strings.Contains(p.Rule, " to ") {
			t.Errorf("%s: refused as %+v, want the field %s and its range", what, p, field)
		}
	}
	for _, ttl := range append(odd, "null") {
		check("ttl "+ttl, "ttl_us", refused(t, "POST", base+"/v1/leases/acquire", acquireBody("job", ttl)))
	}
	check("no ttl", "ttl_us", refused(t, "POST", base+"/v1/leases/acquire", fmt.Sprintf(`{"name":"job","holder":"a","attempt":"%s"}`, store.NewAttempt())))
	unwritten(t, st, 0)

	for i, ttl := range []string{"1000", "60000000", "60000001", "86399999999", "86400000000"} {
		status, body := ask(t, "POST", base+"/v1/leases/acquire", acquireBody(fmt.Sprintf("granted-%d", i), ttl))
		var rec api.Record
		if err := json.Unmarshal(body, &rec); err != nil || status != 200 || fmt.Sprint(rec.TTLUS) != ttl || rec.RemainingUS > rec.TTLUS {
			t.Errorf("ttl %s: got %d %s, want it granted as it is", ttl, status, body)
		}
	}

	before := st.Writes()
	for _, n := range odd {
		if n == "0" || n == "1" || n == "1125899906842624" || n == "9007199254740992" || n == "86400000001" || n == "9223372036854776" {
			continue // within the range of the fields below, or above it as others are
		}
		hold := strings.Replace(acquireBody("job", "60000000"), "{", `{"min_hold_us":`+n+`,`, 1)
		check("min-hold "+n, "min_hold_us", refused(t, "POST", base+"/v1/leases/acquire", hold))
		check("idle "+n, "idle_us", refused(t, "POST", base+"/v1/leases/clean", `{"idle_us":`+n+`}`))
	}
	for _, n := range append(odd, "") {
		if n != "1" {
			check("limit "+n, "limit", refused(t, "GET", base+"/v1/leases?limit="+url.QueryEscape(n), ""))
		}
	}
	grant := fmt.Sprintf(`{"grants":[{"name":"granted-1","token":"1","attempt":"%s","known":["%s"],"ttl_us":%%s}]}`, store.NewAttempt(), store.NewAttempt())
	for _, ttl := range odd {
		if p := refused(t, "POST", base+"/v1/leases/renew", fmt.Sprintf(grant, ttl)); !strings.Contains(p.Field, "ttl") || !strings.Contains(p.Rule, "from ") {
			t.Errorf("renewal with ttl %s: refused as %+v, want its field and range", ttl, p)
		}
	}
	unwritten(t, st, before)
}

// TestC73: a name comes back byte by byte or is refused, and never redirected.
func TestC73(t *testing.T) {
	t.Parallel()
	st := memory.New()
	base := serve(t, st)
	for _, name := range []string{
		"", "/a", "a//b", "a/", "a/../b", "a/./b", "..", "a%2Fb", "a b", "a ", " a", "a\u00a0b", "é", "e\u0301", "🦊", "a\x00", "a\n", "a\u202eb", "a'b", `a"b`,
		strings.Repeat("a", store.MaxName+1), strings.Repeat("a", 10_000),
	} {
		for what, p := range map[string]api.Problem{
			"acquire": refused(t, "POST", base+"/v1/leases/acquire", acquireBody(name, "60000000")),
			"get":     refused(t, "GET", base+"/v1/leases/get?name="+url.QueryEscape(name), ""),
			"history": refused(t, "GET", base+"/v1/leases/history?name="+url.QueryEscape(name), ""),
			"watch":   refused(t, "GET", base+"/v1/leases/watch?name="+url.QueryEscape(name), ""),
		} {
			if p.Field != "name" || p.Rule == "" {
				t.Errorf("%s of %.20q: refused as %+v, want the field name and its rule", what, name, p)
			}
		}
	}
	unwritten(t, st, 0)
	for _, name := range []string{"a/b", "A/b", "a+b", "a@b:c", "a.", strings.Repeat("x", store.MaxName)} {
		if status, body := ask(t, "POST", base+"/v1/leases/acquire", acquireBody(name, "60000000")); status != 200 {
			t.Fatalf("acquire of %q: got %d %s", name, status, body)
		}
		status, body := ask(t, "GET", base+"/v1/leases/get?name="+url.QueryEscape(name), "")
		var rec api.Record
		if err := json.Unmarshal(body, &rec); err != nil || status != 200 || rec.Name != name {
			t.Errorf("get of %q: got %d %s", name, status, body)
		}
	}
	for _, path := range []string{"/v1//leases", "//v1/leases", "/v1/leases/../leases", "/v1/./leases", "/v1/leases/", "/v1/leases/a/b", "/v1/leases/%2e%2e/leases", "/v2/leases", "/"} {
		status, body := ask(t, "GET", base+path, "")
		var p api.Problem
		if err := json.Unmarshal(body, &p); err != nil || status != http.StatusNotFound || p.Code != api.CodeNoSuchPath {
			t.Errorf("GET %s: got %d %s, want 404 %s", path, status, body, api.CodeNoSuchPath)
		}
	}
	if status, body := ask(t, "DELETE", base+"/v1/leases/get?name=a", ""); status != http.StatusMethodNotAllowed || !bytes.Contains(body, []byte(api.CodeNoSuchMethod)) {
		t.Errorf("DELETE: got %d %s, want 405 %s", status, body, api.CodeNoSuchMethod)
	}
}

// TestStrict: what is not understood whole is refused, and the store is not asked.
func TestStrict(t *testing.T) {
	t.Parallel()
	st := memory.New()
	base := serve(t, st)
	good := acquireBody("job", "60000000")
	for what, body := range map[string]string{
		"an unknown field": strings.Replace(good, "{", `{"tll_us":5,`, 1),
		"nothing":          "",
		"null":             "null",
		"a list":           "[" + good + "]",
		"two values":       good + good,
		"rubbish after it": good + "x",
		"a cut body":       good[:len(good)-1],
		"a bad attempt":    strings.Replace(good, `"attempt":"`, `"attempt":"zz`, 1),
		"bytes":            strings.Replace(good, `"job"`, "\"j\xffb\"", 1),
		"a name of number": strings.Replace(good, `"job"`, "7", 1),
		"a known of text":  strings.Replace(good, "{", `{"known":"x",`, 1),
	} {
		t.Run(what, func(t *testing.T) { refused(t, "POST", base+"/v1/leases/acquire", body) })
	}
	for _, body := range []string{`{"floor":"5"}`, `{"floor":"5","all":false}`, `{"floor":"5","all":true,"name":"job"}`, `{"floor":5,"all":true}`, `{"floor":"05","all":true}`} {
		refused(t, "POST", base+"/v1/leases/floor", body)
	}
	for _, query := range []string{"?name=a&nom=b", "?name=a&name=b", "?name=a;b", "?name=%zz", ""} {
		refused(t, "GET", base+"/v1/leases/get"+query, "")
	}
	unwritten(t, st, 0)

	large := strings.Replace(good, "{", `{"meta":{"k":"`+strings.Repeat("x", 64<<10)+`"},`, 1)
	if status, body := ask(t, "POST", base+"/v1/leases/acquire", large); status != http.StatusRequestEntityTooLarge || !bytes.Contains(body, []byte(api.CodeTooLarge)) {
		t.Errorf("a large body: got %d %s, want 413", status, body)
	}
	resp, err := http.Post(base+"/v1/leases/acquire", "text/plain", strings.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a body that any web page could send: got %d, want 415", resp.StatusCode)
	}
	unwritten(t, st, 0)
}

// broken is a store with a defect.
type broken struct{ store.Store }

func (broken) Get(context.Context, string) (store.Record, error) { panic("secret of a defect") }

// TestFault: a defect is answered without its details, and goes to the log.
func TestFault(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	srv := httptest.NewServer(leasehttp.Handler(broken{memory.New()}, slog.New(slog.NewTextHandler(&log, nil))))
	status, body := ask(t, "GET", srv.URL+"/v1/leases/get?name=a", "")
	srv.Close() // the log is written
	var p api.Problem
	if err := json.Unmarshal(body, &p); err != nil || status != http.StatusInternalServerError || p.Code != api.CodeFault || bytes.Contains(body, []byte("secret")) || bytes.Contains(body, []byte(".go")) {
		t.Errorf("got %d %s, want 500 %s and nothing of the defect", status, body, api.CodeFault)
	}
	if !strings.Contains(log.String(), "secret of a defect") || !strings.Contains(log.String(), "leases-get") {
		t.Errorf("log: got %s, want the defect and the operation", log.String())
	}
}

// TestDocument: each operation is in the document, with its parameters and the
// ranges that are enforced.
func TestDocument(t *testing.T) {
	t.Parallel()
	status, body := ask(t, "GET", serve(t, memory.New())+"/v1/leases/openapi.json", "")
	if status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	var doc struct {
		Paths      map[string]map[string]struct{ Parameters []struct{ Name string } }
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct {
					Type    any
					Minimum *float64
					Maximum *float64
				}
				Required []string
			}
		}
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatal(err)
	}
	for path, method := range map[string]string{
		"/acquire": "post", "/renew": "post", "/release": "post", "/done": "post", "/revoke": "post", "/floor": "post", "/clean": "post",
		"": "get", "/get": "get", "/history": "get", "/slot": "get", "/features": "get", "/doctor": "get", "/watch": "get",
	} {
		if _, ok := doc.Paths[leasehttp.Prefix+path][method]; !ok {
			t.Errorf("document has no %s of %s%s", method, leasehttp.Prefix, path)
		}
	}
	acquire := doc.Components.Schemas["AcquireRequest"]
	ttl := acquire.Properties["ttl_us"]
	if ttl.Type != "integer" || ttl.Minimum == nil || *ttl.Minimum != 1 || ttl.Maximum == nil || *ttl.Maximum != 86_400_000_000 {
		t.Errorf("ttl_us: got %+v, want the range that is enforced", ttl)
	}
	if tt := acquire.Properties["attempt"].Type; tt != "string" {
		t.Errorf("attempt: got type %v, want string", tt)
	}
	if tt := doc.Components.Schemas["Record"].Properties["token"].Type; tt != "string" {
		t.Errorf("token: got type %v, want string", tt)
	}
	if strings.Contains(fmt.Sprint(acquire.Required), "known") || !strings.Contains(fmt.Sprint(acquire.Required), "ttl_us") {
		t.Errorf("required: got %v, want ttl_us and not known", acquire.Required)
	}
}
