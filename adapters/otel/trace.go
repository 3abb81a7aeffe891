package otel

import (
	"context"
	"fmt"
	"iter"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Trace returns st with a span of provider for each request. Watch and Features make
// none. It has all optional interfaces of package store: what st does not offer is
// answered with an error matching store.ErrUnsupported.
func Trace(st store.Store, provider trace.TracerProvider) *Store {
	return &Store{st, provider.Tracer(scope)}
}

// Store is a store that is traced. It is safe for concurrent use if the store
// behind it is.
type Store struct {
	st     store.Store
	tracer trace.Tracer
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Watcher   = (*Store)(nil)
	_ store.Historian = (*Store)(nil)
	_ store.Slotter   = (*Store)(nil)
	_ store.Cleaner   = (*Store)(nil)
	_ store.Doctor    = (*Store)(nil)
)

// Unwrap returns the store behind s.
func (s *Store) Unwrap() store.Store { return s.st }

func (s *Store) begin(ctx context.Context, op string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	return s.tracer.Start(ctx, "tenure.store/"+op, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
}

// about is the attribute of a request for one lease.
func about(name string) attribute.KeyValue { return attribute.String("tenure.lease", name) }

// end ends a span with what the store answered. A decision is no error.
func end(span trace.Span, err error) {
	code := "ok"
	if err != nil {
		code = string(store.Classify(err))
		if failure(err) {
			span.RecordError(err)
			span.SetStatus(codes.Error, code)
		}
	}
	span.SetAttributes(attribute.String("tenure.code", code))
	span.End()
}

// failure reports whether err says that the store did not decide.
func failure(err error) bool {
	switch store.Classify(err) {
	case store.CodeNoContact, store.CodeBusy, store.CodePermission, store.CodeReadOnly, store.CodeSchema, store.CodeCopied:
		return true
	}
	return false
}

// Acquire is of store.Store.
func (s *Store) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	ctx, span := s.begin(ctx, "acquire", about(req.Name))
	rec, err := s.st.Acquire(ctx, req)
	if err == nil {
		span.SetAttributes(token(rec.Token))
	}
	end(span, err)
	return rec, err
}

func token(t fence.Token) attribute.KeyValue { return attribute.String("tenure.token", t.String()) }

// Renew is of store.Store. The span says how many of the terms were not renewed.
func (s *Store) Renew(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return s.many(ctx, "renew", grants, s.st.Renew)
}

// Release is of store.Store.
func (s *Store) Release(ctx context.Context, grants []store.Grant) ([]store.Result, error) {
	return s.many(ctx, "release", grants, s.st.Release)
}

func (s *Store) many(ctx context.Context, op string, grants []store.Grant, send func(context.Context, []store.Grant) ([]store.Result, error)) ([]store.Result, error) {
	attributes := []attribute.KeyValue{attribute.Int("tenure.terms", len(grants))}
	if len(grants) == 1 {
		attributes = append(attributes, about(grants[0].Name), token(grants[0].Token))
	}
	ctx, span := s.begin(ctx, op, attributes...)
	results, err := send(ctx, grants)
	refused := 0
	first := err
	for i := range results {
		if results[i].Err != nil {
			if refused++; first == nil {
				first = results[i].Err
			}
		}
	}
	span.SetAttributes(attribute.Int("tenure.refused", refused))
	end(span, first)
	return results, err
}

// Get is of store.Store.
func (s *Store) Get(ctx context.Context, name string) (store.Record, error) {
	ctx, span := s.begin(ctx, "get", about(name))
	rec, err := s.st.Get(ctx, name)
	end(span, err)
	return rec, err
}

// List is of store.Store. The span lasts until the iteration is over.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Record, error] {
	return traced(ctx, s, "list", attribute.String("tenure.prefix", prefix), func(ctx context.Context) iter.Seq2[store.Record, error] {
		return s.st.List(ctx, prefix)
	})
}

func traced[T any](ctx context.Context, s *Store, op string, of attribute.KeyValue, list func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		ctx, span := s.begin(ctx, op, of)
		var last error
		n := 0
		defer func() {
			span.SetAttributes(attribute.Int("tenure.records", n))
			end(span, last)
		}()
		for v, err := range list(ctx) {
			if last = err; err == nil {
				n++
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// Revoke is of store.Store.
func (s *Store) Revoke(ctx context.Context, name string, of fence.Token, rev store.Revocation) error {
	ctx, span := s.begin(ctx, "revoke", about(name), token(of))
	err := s.st.Revoke(ctx, name, of, rev)
	end(span, err)
	return err
}

// RaiseFloor is of store.Store.
func (s *Store) RaiseFloor(ctx context.Context, name string, floor fence.Token) error {
	ctx, span := s.begin(ctx, "raise_floor", about(name), token(floor))
	err := s.st.RaiseFloor(ctx, name, floor)
	end(span, err)
	return err
}

// Features is of store.Store.
func (s *Store) Features() store.Features {
	f := s.st.Features()
	if _, ok := s.st.(store.Watcher); !ok {
		f.Watch = false
	}
	return f
}

func unsupported(what string) error {
	return fmt.Errorf("otel: the store %s: %w", what, store.ErrUnsupported)
}

// Watch is of store.Watcher.
func (s *Store) Watch(ctx context.Context, name string) (<-chan store.Event, error) {
	if w, ok := s.st.(store.Watcher); ok {
		return w.Watch(ctx, name)
	}
	return nil, unsupported("cannot tell of starts and ends of terms")
}

// History is of store.Historian. The span lasts until the iteration is over.
func (s *Store) History(ctx context.Context, name string) iter.Seq2[store.Term, error] {
	return traced(ctx, s, "history", about(name), func(ctx context.Context) iter.Seq2[store.Term, error] {
		if h, ok := s.st.(store.Historian); ok {
			return h.History(ctx, name)
		}
		return func(yield func(store.Term, error) bool) { yield(store.Term{}, unsupported("keeps no past terms")) }
	})
}

// Done is of store.Slotter.
func (s *Store) Done(ctx context.Context, g store.Grant, slot string) error {
	ctx, span := s.begin(ctx, "done", about(g.Name), token(g.Token))
	err := unsupported("keeps no slots")
	if slotter, ok := s.st.(store.Slotter); ok {
		err = slotter.Done(ctx, g, slot)
	}
	end(span, err)
	return err
}

// Slot is of store.Slotter.
func (s *Store) Slot(ctx context.Context, name, slot string) (store.Slot, error) {
	ctx, span := s.begin(ctx, "slot", about(name))
	found, err := store.Slot{}, unsupported("keeps no slots")
	if slotter, ok := s.st.(store.Slotter); ok {
		found, err = slotter.Slot(ctx, name, slot)
	}
	end(span, err)
	return found, err
}

// Clean is of store.Cleaner.
func (s *Store) Clean(ctx context.Context, idle time.Duration) (int, error) {
	ctx, span := s.begin(ctx, "clean")
	n, err := 0, unsupported("cleans no records")
	if c, ok := s.st.(store.Cleaner); ok {
		n, err = c.Clean(ctx, idle)
	}
	end(span, err)
	return n, err
}

// Diagnose is of store.Doctor.
func (s *Store) Diagnose(ctx context.Context) ([]store.Finding, error) {
	ctx, span := s.begin(ctx, "diagnose")
	found, err := []store.Finding(nil), unsupported("has nothing to look at")
	if d, ok := s.st.(store.Doctor); ok {
		found, err = d.Diagnose(ctx)
	}
	end(span, err)
	return found, err
}
