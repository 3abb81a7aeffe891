package server

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/leasehttp"
)

// document returns an API whose operations are served by mux and described in one
// document.
func (h *handler) document(mux *http.ServeMux) huma.API {
	config := huma.DefaultConfig("tenure", h.opts.Version)
	config.DocsPath, config.SchemasPath, config.OpenAPIPath, config.CreateHooks = "", "", "", nil
	if config.Info.Version == "" {
		config.Info.Version = "unversioned"
	}
	config.Info.Description = "Leases, and a fleet of nodes with its work. Durations are whole numbers whose names end in their unit (_ms, _us). " +
		"Tokens are strings. A refusal is a problem with a stable code."
	if h.opts.Tokens != nil {
		config.Components.SecuritySchemes = map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer"}}
		config.Security = []map[string][]string{{"token": {}}}
	}
	return humago.New(mux, config)
}

// describeBeats adds the operations that take in beats.
func (h *handler) describeBeats(a huma.API) {
	schemas := a.OpenAPI().Components.Schemas
	schema := func(t reflect.Type) map[string]*huma.MediaType {
		return map[string]*huma.MediaType{"application/json": {Schema: schemas.Schema(t, true, t.Name())}}
	}
	problem := schemas.Schema(reflect.TypeFor[api.Problem](), true, "Problem")
	add := func(path, id, summary, text string, in, out reflect.Type) {
		op := operation(http.MethodPost, path, id, report, summary)
		op.Tags = []string{"beats"}
		op.Description = text
		op.RequestBody = &huma.RequestBody{Required: true, Content: schema(in)}
		op.Responses = map[string]*huma.Response{
			"200":     {Description: http.StatusText(http.StatusOK), Content: schema(out)},
			"default": {Description: "a refusal: its code says why", Content: map[string]*huma.MediaType{api.ProblemType: {Schema: problem}}},
		}
		a.OpenAPI().AddOperation(&op)
	}
	add(beatPath, "beat", "take in a heartbeat",
		"The reply has a code if the beat was not taken for the node's (old_sequence, duplicate_node, incarnation_replaced). Its lease may be refused while the beat is accepted.",
		reflect.TypeFor[api.Beat](), reflect.TypeFor[api.BeatReply]())
	add(beatsPath, "beats", "take in the heartbeats of many, from a relay",
		"There is one reply for each beat, in order. One that could not be taken in has the code of the problem that it would have been answered with alone.",
		reflect.TypeFor[api.Beats](), reflect.TypeFor[api.BeatReplies]())
}

// describeMetrics adds the metrics to the document, by name.
func (h *handler) describeMetrics(a huma.API) {
	op := operation(http.MethodGet, "/metrics", "metrics", leasehttp.Read, "what this replica counts and measures, in the text format of Prometheus")
	op.Tags = []string{"metrics"}
	text := "Beside those of the process and of the Go runtime:"
	texts := slices.Concat(newMetrics(h.Server, "").texts, h.st.texts, newTables(nil).texts)
	slices.SortFunc(texts, func(a, b metricText) int { return strings.Compare(a.name, b.name) })
	for _, m := range texts {
		text += "\n- `" + m.name + "`: " + m.help
	}
	op.Description = text
	op.Responses = map[string]*huma.Response{
		"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}}}},
	}
	a.OpenAPI().AddOperation(&op)
}

// serveDocument serves the document as it is when Handler returns.
func serveDocument(a huma.API) func(http.ResponseWriter, *http.Request) error {
	text, err := json.Marshal(a.OpenAPI())
	if err == nil {
		var indented bytes.Buffer
		if err = json.Indent(&indented, text, "", " "); err == nil {
			text = indented.Bytes()
		}
	}
	return func(w http.ResponseWriter, _ *http.Request) error {
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = w.Write(text)
		return nil
	}
}
