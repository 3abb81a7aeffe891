package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	adapter "github.com/tenurehq/tenure/adapters/prometheus"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/server"
)

// servedHere answers a GET of a replica that was not started, on a file of its own.
func servedHere(t *testing.T, path string) string {
	t.Helper()
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
	replica(t, server.Config{}).Handler(server.HTTPConfig{Version: "1"}).ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: got %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}

// replica returns a server with these settings that was not started.
func replica(t *testing.T, cfg server.Config) *server.Server {
	t.Helper()
	st, reg, closeDB, err := openFleet(t.Context(), location{kind: kindSQLite, target: fileStore(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeDB)
	s, err := server.New(st, reg, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestTimings writes the table of docs/TIMINGS.md from the server's arithmetic.
func TestTimings(t *testing.T) {
	t.Parallel()
	sizes := []float64{100, 1000, 10_000, 100_000}
	var b strings.Builder
	b.WriteString("| Interval | Suspects a crash within | Node TTL | Takes over within | 100 | 1,000 | 10,000 | 100,000 |\n|---|---|---|---|---|---|---|---|\n")
	for _, interval := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second} {
		cfg := replica(t, server.Config{Interval: interval}).Config()
		e := cfg.Effective()
		ms := func(n int64) string { return shortDuration(time.Duration(n) * time.Millisecond) }
		fmt.Fprintf(&b, "| %s | %s to %s | %s | %s |", ms(e.IntervalMS), ms(e.DetectionMS[0]), ms(e.DetectionMS[1]), ms(e.NodeTTLMS), ms(e.TakeoverMS))
		for _, n := range sizes {
			fmt.Fprintf(&b, " %s |", thousands(n/interval.Seconds()))
		}
		b.WriteString("\n")
	}
	generated(t, repo+"/docs/TIMINGS.md", "timings", b.String())
}

// thousands writes a number for people, to three digits if it is small.
func thousands(x float64) string {
	if x < 100 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	s := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// TestAlerts writes the table of docs/OPERATING.md from the alert rules.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Labels      struct{ Severity string }
				Annotations struct{ Summary, Description string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(readText(t, repo+"/deploy/prometheus/tenure.rules.yml")), &rules); err != nil {
		t.Fatal(err)
	}
	label, value := regexp.MustCompile(`\{\{ *\$labels\.(\w+) *\}\}`), regexp.MustCompile(`\{\{[^}]*\}\}`)
	var b strings.Builder
	b.WriteString("| Alert | Severity | What it says | What is behind it |\n|---|---|---|---|\n")
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" { // it records
				continue
			}
			text := func(s string) string {
				return cell(value.ReplaceAllString(label.ReplaceAllString(s, "*$1*"), "*N*"))
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Alert, r.Labels.Severity, text(r.Annotations.Summary), text(r.Annotations.Description))
		}
	}
	generated(t, repo+"/docs/OPERATING.md", "alerts", b.String())
}

// openAPI is what is read of the document.
type openAPI struct {
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Schemas map[string]schema `json:"schemas"`
	} `json:"components"`
}

type operation struct {
	Summary     string   `json:"summary"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
	Parameters  []struct {
		Name        string `json:"name"`
		In          string `json:"in"`
		Description string `json:"description"`
		Required    bool   `json:"required"`
		Schema      schema `json:"schema"`
	} `json:"parameters"`
	RequestBody struct {
		Content content `json:"content"`
	} `json:"requestBody"`
	Responses map[string]struct {
		Description string  `json:"description"`
		Content     content `json:"content"`
	} `json:"responses"`
}

type content map[string]struct {
	Schema schema `json:"schema"`
}

type schema struct {
	Ref         string            `json:"$ref"`
	Type        any               `json:"type"` // a string, or a list of them
	Format      string            `json:"format"`
	Description string            `json:"description"`
	Enum        []any             `json:"enum"`
	Minimum     *float64          `json:"minimum"`
	Maximum     *float64          `json:"maximum"`
	Default     any               `json:"default"`
	Items       *schema           `json:"items"`
	Properties  map[string]schema `json:"properties"`
	Additional  json.RawMessage   `json:"additionalProperties"`
	Required    []string          `json:"required"`
}

// TestAPIPage writes docs/API.md from the document that a server serves.
func TestAPIPage(t *testing.T) {
	t.Parallel()
	var doc openAPI
	if err := json.Unmarshal([]byte(servedHere(t, "/v1/openapi.json")), &doc); err != nil {
		t.Fatal(err)
	}
	type route struct {
		path, method string
		operation
	}
	byTag := map[string][]route{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if len(op.Tags) != 1 || op.Summary == "" {
				t.Errorf("%s %s: got tags %q and summary %q, want one tag and a summary", method, path, op.Tags, op.Summary)
				continue
			}
			byTag[op.Tags[0]] = append(byTag[op.Tags[0]], route{path, strings.ToUpper(method), op})
		}
	}
	var b strings.Builder
	for _, tag := range slices.Sorted(maps.Keys(byTag)) {
		fmt.Fprintf(&b, "\n## %s\n", tag)
		slices.SortFunc(byTag[tag], func(x, y route) int {
			return cmp.Or(strings.Compare(x.path, y.path), strings.Compare(x.method, y.method))
		})
		for _, r := range byTag[tag] {
			fmt.Fprintf(&b, "\n### %s %s\n\n%s.", r.method, r.path, upperFirst(r.Summary))
			if r.Description != "" {
				fmt.Fprintf(&b, " %s", strings.TrimSuffix(r.Description, ".")+".")
			}
			b.WriteString("\n\n")
			for _, p := range r.Parameters {
				must := ""
				if p.Required && p.In != "path" {
					must = ", required"
				}
				fmt.Fprintf(&b, "- `%s` (%s%s): %s%s\n", p.Name, p.In, must, typeText(p.Schema), colon(cell(cmp.Or(p.Description, p.Schema.Description))))
			}
			if body := bodyText(r.RequestBody.Content); body != "" {
				fmt.Fprintf(&b, "- takes %s\n", body)
			}
			for _, status := range slices.Sorted(maps.Keys(r.Responses)) {
				if status != "default" {
					fmt.Fprintf(&b, "- answers %s%s\n", status, spaced(bodyText(r.Responses[status].Content)))
				}
			}
		}
	}
	b.WriteString("\n## Types\n")
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		s := doc.Components.Schemas[name]
		fmt.Fprintf(&b, "\n### type %s\n\n", name)
		if s.Description != "" {
			fmt.Fprintf(&b, "%s\n\n", s.Description)
		}
		if len(s.Properties) == 0 {
			fmt.Fprintf(&b, "%s\n", typeText(s))
			continue
		}
		b.WriteString("| Field | Type | |\n|---|---|---|\n")
		for _, field := range slices.Sorted(maps.Keys(s.Properties)) {
			p := s.Properties[field]
			note := cell(p.Description)
			if slices.Contains(s.Required, field) {
				note = strings.TrimSuffix("always there; "+note, "; ")
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", field, typeText(p), note)
		}
	}
	generated(t, repo+"/docs/API.md", "interface", b.String())
}

func upperFirst(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func colon(s string) string {
	if s == "" {
		return ""
	}
	return "; " + s
}

func spaced(s string) string {
	if s == "" {
		return ""
	}
	return " with " + s
}

// cell makes text fit for a cell of a table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(strings.TrimSuffix(strings.TrimSpace(s), "."))
}

func bodyText(c content) string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(c)) {
		text := typeText(c[kind].Schema)
		if kind != "application/json" {
			text = fmt.Sprintf("%s as `%s`", text, kind)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func typeText(s schema) string {
	if s.Ref != "" {
		name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		return fmt.Sprintf("[%s](#type-%s)", name, strings.ToLower(name))
	}
	var kinds []string
	switch v := s.Type.(type) {
	case string:
		kinds = []string{v}
	case []any:
		for _, k := range v {
			kinds = append(kinds, fmt.Sprint(k))
		}
	}
	text := strings.Join(kinds, ", or ")
	switch {
	case s.Items != nil:
		text = strings.Replace(text, "array", "list of "+typeText(*s.Items), 1)
	case len(s.Additional) > 0 && s.Additional[0] == '{':
		var of schema
		if json.Unmarshal(s.Additional, &of) == nil {
			text = "map of " + typeText(of)
		}
	case text == "":
		text = "anything"
	}
	if s.Format == "date-time" {
		text = "instant (RFC 3339)"
	}
	if len(s.Enum) > 0 {
		var all []string
		for _, v := range s.Enum {
			all = append(all, fmt.Sprintf("`%v`", v))
		}
		text += ": " + strings.Join(all, ", ")
	}
	bound := func(word string, x *float64) {
		if x != nil && *x < 1<<62 { // what every int64 is
			text += fmt.Sprintf(", %s %s", word, strconv.FormatFloat(*x, 'f', -1, 64))
		}
	}
	bound("at least", s.Minimum)
	bound("at most", s.Maximum)
	if s.Default != nil && !reflect.ValueOf(s.Default).IsZero() {
		text += fmt.Sprintf(", default `%v`", s.Default)
	}
	return text
}

// TestDocumentedMetrics: the metrics that a page or the README names are the server's,
// or of who holds a lease.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	var held strings.Builder // described, each with its name in quotes
	descriptions := make(chan *prometheus.Desc)
	go func() {
		adapter.New().Describe(descriptions)
		close(descriptions)
	}()
	for d := range descriptions {
		held.WriteString(d.String())
	}
	exposed := servedHere(t, "/v1/openapi.json")
	for _, path := range append(pages(t), repo+"/README.md") {
		for _, name := range regexp.MustCompile("`(tenure_[a-z_]+)`").FindAllStringSubmatch(readText(t, path), -1) {
			known := slices.Contains([]string{"tenure_nodes", "tenure_work", "tenure_takeovers", "tenure_status", "tenure_leases", "tenure_schema", "tenure_fence"}, name[1]) // of the database
			if !known && !strings.Contains(exposed, name[0]) && !strings.Contains(held.String(), strconv.Quote(name[1])) {
				t.Errorf("%s: %s is not exposed", path, name[1])
			}
		}
	}
}

// TestCodesPage writes the generated parts of docs/CODES.md, and holds the others to
// the constants in the code: each code stands in the page, and the page has no other.
func TestCodesPage(t *testing.T) {
	t.Parallel()
	page := repo + "/docs/CODES.md"
	var exits, exclusions strings.Builder
	exits.WriteString("| Code | Meaning |\n|---|---|\n")
	for _, c := range exitCodes {
		fmt.Fprintf(&exits, "| %d | %s |\n", c.code, c.meaning)
	}
	generated(t, page, "exit codes", exits.String())
	exclusions.WriteString("| Code | Gravity | Meaning | Clears when |\n|---|---|---|---|\n")
	for _, r := range fleet.Reasons() {
		code := string(r.Code)
		if r.Code == fleet.CodeInsufficient {
			code += "RESOURCE"
		}
		fmt.Fprintf(&exclusions, "| `%s` | %s | %s | %s |\n", code, r.Severity, r.Text, r.Clears)
	}
	generated(t, page, "exclusions", exclusions.String())

	code := map[string]bool{}
	for _, in := range []struct{ dir, names string }{
		{"store", `^Code`}, {"fleet", `^(Code|Event)[A-Z]`}, {"api", `^Code`}, {".", `^(Reason|Event)[A-Z]`}, {"internal/term", `^(Paused|NoProgress|WallStep)$`},
	} {
		for _, value := range constants(t, repo+"/"+in.dir, regexp.MustCompile(in.names)) {
			code[value] = true
		}
	}
	told := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+?)(?:RESOURCE)?` \\|").FindAllStringSubmatch(readText(t, page), -1) {
		told[m[1]] = true
	}
	for value := range code {
		if !told[value] {
			t.Errorf("%s: the code %q is missing", page, value)
		}
	}
	for value := range told {
		if !code[value] {
			t.Errorf("%s: no such code as %q", page, value)
		}
	}
}

// constants returns the values of the string constants of a package whose names match.
func constants(t *testing.T, dir string, names *regexp.Regexp) (values []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", dir, files, err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			d, ok := n.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				return true
			}
			for _, s := range d.Specs {
				spec := s.(*ast.ValueSpec)
				for i, name := range spec.Names {
					if i >= len(spec.Values) || !names.MatchString(name.Name) {
						continue
					}
					v := spec.Values[i]
					if call, ok := v.(*ast.CallExpr); ok && len(call.Args) == 1 { // Reason("forked")
						v = call.Args[0]
					}
					if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						value, _ := strconv.Unquote(lit.Value)
						values = append(values, value)
					}
				}
			}
			return false
		})
	}
	if len(values) == 0 {
		t.Fatalf("%s: no constants", dir)
	}
	return values
}

// TestSnippets type-checks the Go in the pages that calls the library. What a reader has
// to bring, such as a function of his own, is not declared in it.
func TestSnippets(t *testing.T) {
	t.Parallel()
	build.Default.CgoEnabled = false // so that the importer needs no C compiler; nothing else here reads it
	files := token.NewFileSet()
	conf := types.Config{Importer: importer.ForCompiler(files, "source", nil)}
	seen := 0
	for _, page := range pages(t) {
		for _, b := range blocks(t, page) {
			if b.lang != "go" || b.file != "" || !strings.Contains(b.text, "tenure.") {
				continue
			}
			seen++
			at := fmt.Sprintf("%s:%d", page, b.line)
			for _, fault := range snippetFaults(t, files, &conf, at, b.text) {
				t.Errorf("%s: %s", at, fault)
			}
		}
	}
	if seen == 0 {
		t.Error("no snippet was found: the search has a fault")
	}
	if len(snippetFaults(t, files, &conf, "none", "tenure.Du(nil)\n")) != 1 || len(snippetFaults(t, files, &conf, "none", "_ = tenure.Do(mine)\n")) != 1 {
		t.Error("a snippet with a fault has none")
	}
}

// snippetFaults returns what the compiler would say of statements that call the library.
func snippetFaults(t *testing.T, files *token.FileSet, conf *types.Config, name, text string) (faults []string) {
	t.Helper()
	text = "package p\nimport (\"context\"; \"github.com/tenurehq/tenure\")\nfunc _() {\n" + text + "}\n"
	f, err := parser.ParseFile(files, name, text, 0)
	if err != nil {
		return []string{err.Error()}
	}
	own := regexp.MustCompile(`^undefined: \w+$|^declared and not used|imported and not used`)
	check := *conf
	check.Error = func(err error) {
		var e types.Error
		if errors.As(err, &e) && !own.MatchString(e.Msg) {
			faults = append(faults, e.Msg)
		}
	}
	_, _ = check.Check("p", files, []*ast.File{f}, nil)
	return faults
}
