// Package otel shows what the holders of a process hold as instruments of
// OpenTelemetry, and traces what is asked of a store.
//
// # Promised
//
// The instruments say what those of adapters/prometheus say, under names of
// OpenTelemetry, and keep the same promise: tenure.lease.held is judged by a reading
// of the clocks at each collection, is 1 only while the holder may act, and what is
// not known is left out.
//
//	tenure.lease.held, .doubt, .token              {tenure.lease}
//	tenure.lease.confirmed_age, .trust (seconds)   {tenure.lease}
//	tenure.lease.acquired                          {tenure.lease}
//	tenure.keeper.events                           {tenure.kind, tenure.reason}
//	tenure.keeper.renewal.duration (seconds)       {tenure.code}
//
// A traced store begins a span for each request, tenure.store/acquire and so on, in
// the trace of the context that it gets. A span carries tenure.lease where it is about
// one, tenure.terms where it carries several, and tenure.code: "ok", or what the store
// answered. That somebody else holds a lease is an answer, and no error of the span.
//
// # Not promised
//
// The attribute tenure.lease holds the name of a lease: see adapters/prometheus on
// what that costs. A keeper sends its renewals apart from the work under the terms, so
// they are in traces of their own.
package otel
