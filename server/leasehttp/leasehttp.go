package leasehttp

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/server/endpoint"
	"github.com/tenurehq/tenure/store"
)

// Prefix begins the paths of all operations.
const Prefix = "/v1/leases"

// Limits of the interface.
const (
	maxBatch = 8 << 20 // bytes of a renewal or release of many
	maxPage  = 10_000  // records of one page
)

// What an operation does, in its Metadata under the key Access, for the server
// to decide who may call it.
const (
	Access  = "access"
	Read    = "read"    // tells what is there
	Hold    = "hold"    // what a holder does to its own terms
	Operate = "operate" // what an operator does to the terms of others
)

type handlers struct{ st store.Store }

// Register adds the operations to a, which must be of package humago. log gets
// faults; nil discards them.
func Register(a huma.API, st store.Store, log *slog.Logger) {
	h := handlers{st}
	post := func(verb, access, summary string, maxBytes int64) huma.Operation {
		return huma.Operation{
			OperationID: "leases-" + verb, Method: http.MethodPost, Path: Prefix + "/" + verb, Tags: []string{"leases"},
			Summary: summary, MaxBodyBytes: maxBytes, Metadata: map[string]any{Access: access},
		}
	}
	get := func(verb, path, summary string) huma.Operation {
		return huma.Operation{
			OperationID: "leases-" + verb, Method: http.MethodGet, Path: Prefix + path, Tags: []string{"leases"},
			Summary: summary, Metadata: map[string]any{Access: Read},
		}
	}
	endpoint.Register(a, post("acquire", Hold, "start a term", 0), h.acquire, log)
	endpoint.Register(a, post("renew", Hold, "extend terms", maxBatch), h.renew, log)
	endpoint.Register(a, post("release", Hold, "end terms of one's own", maxBatch), h.release, log)
	endpoint.Register(a, post("done", Hold, "record that a slot is done", 0), h.done, log)
	endpoint.Register(a, post("revoke", Operate, "end somebody's term", 0), h.revoke, log)
	endpoint.Register(a, post("floor", Operate, "raise the floor under tokens", 0), h.floor, log)
	endpoint.Register(a, post("clean", Operate, "remove records that are not used any more", 0), h.clean, log)
	endpoint.Register(a, get("list", "", "the records below a prefix"), h.list, log)
	endpoint.Register(a, get("get", "/get", "one record"), h.get, log)
	endpoint.Register(a, get("history", "/history", "the terms of a lease, newest first"), h.history, log)
	endpoint.Register(a, get("slot", "/slot", "the entry of a slot that is done"), h.slot, log)
	endpoint.Register(a, get("features", "/features", "what the store can and cannot ensure"), h.features, log)
	endpoint.Register(a, get("doctor", "/doctor", "what could weaken a promise"), h.doctor, log)
	endpoint.Stream(a, get("watch", "/watch", "starts and ends of terms, as they happen"), h.watch, log)
}

// Handler returns a server of these operations alone, for embedding and tests.
func Handler(st store.Store, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	config := huma.DefaultConfig("tenure leases", "1")
	config.DocsPath, config.SchemasPath, config.OpenAPIPath, config.CreateHooks = "", "", Prefix+"/openapi", nil
	Register(humago.New(mux, config), st, log)
	return endpoint.Router(mux)
}

// of is a typed body in an answer.
type of[T any] struct{ Body T }

func answer[T any](v T) *of[T] { return &of[T]{v} }

func unsupported(what string) error {
	return api.Refuse(store.CodeUnsupported, "this server's store %s", what)
}

func (h handlers) acquire(ctx context.Context, in *of[api.AcquireRequest]) (*of[api.Record], error) {
	rec, err := h.st.Acquire(ctx, in.Body.Store())
	if err != nil {
		return nil, err
	}
	return answer(api.NewRecord(rec)), nil
}

func (h handlers) renew(ctx context.Context, in *of[api.RenewRequest]) (*of[api.Results], error) {
	grants := make([]store.Grant, len(in.Body.Grants))
	for i := range grants {
		grants[i] = in.Body.Grants[i].Store()
	}
	return results(h.st.Renew(ctx, grants))
}

func (h handlers) release(ctx context.Context, in *of[api.ReleaseRequest]) (*of[api.Results], error) {
	grants := make([]store.Grant, len(in.Body.Grants))
	for i := range grants {
		grants[i] = in.Body.Grants[i].Store()
	}
	return results(h.st.Release(ctx, grants))
}

func results(all []store.Result, err error) (*of[api.Results], error) {
	if err != nil {
		return nil, err
	}
	out := make([]api.RenewResult, len(all))
	for i := range all {
		out[i] = api.NewResult(all[i])
	}
	return answer(api.Results{Results: out}), nil
}

func (h handlers) done(ctx context.Context, in *of[api.DoneRequest]) (*of[api.SlotRef], error) {
	slotter, ok := h.st.(store.Slotter)
	if !ok {
		return nil, unsupported("keeps no slots")
	}
	b := &in.Body
	grant := store.Grant{Name: b.Name, Token: b.Token, Attempt: b.Attempt, Known: b.Known}
	if err := slotter.Done(ctx, grant, b.Slot); err != nil {
		return nil, err
	}
	return answer(api.SlotRef{Name: b.Name, Slot: b.Slot}), nil
}

func (h handlers) revoke(ctx context.Context, in *of[api.RevokeRequest]) (*of[api.TermRef], error) {
	b := &in.Body
	rev := store.Revocation{Why: b.Why, By: b.By, Now: b.Now, HandoffTo: b.HandoffTo}
	if err := h.st.Revoke(ctx, b.Name, b.Token, rev); err != nil {
		return nil, err
	}
	return answer(api.TermRef{Name: b.Name, Token: b.Token}), nil
}

func (h handlers) floor(ctx context.Context, in *of[api.FloorRequest]) (*of[api.FloorRequest], error) {
	if in.Body.All == (in.Body.Name != "") {
		return nil, api.RefuseInvalid("name", in.Body.Name, "one name, or in its place \"all\": true for every name")
	}
	if err := h.st.RaiseFloor(ctx, in.Body.Name, in.Body.Floor); err != nil {
		return nil, err
	}
	return answer(in.Body), nil
}

func (h handlers) clean(ctx context.Context, in *of[api.CleanRequest]) (*of[api.Cleaned], error) {
	cleaner, ok := h.st.(store.Cleaner)
	if !ok {
		return nil, unsupported("cleans no records")
	}
	n, err := cleaner.Clean(ctx, in.Body.Idle())
	if err != nil {
		return nil, err
	}
	return answer(api.Cleaned{Removed: n}), nil
}
