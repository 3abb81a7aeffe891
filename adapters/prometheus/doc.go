// Package prometheus shows what the holders of a process hold as metrics of
// Prometheus.
//
// # Promised
//
// tenure_lease_held is 1 while the holder may act and at no other time: it is judged
// by a reading of the clocks at each scrape, and falls no later than the right itself
// ends, whatever the store, the keeper's loop or its log know by then. Between two
// scrapes tenure_lease_trusted_until_timestamp_seconds says up to when the last value
// can be believed. A lease that was held and is not shows 0, and no other value of the
// term that is over: what nobody knows is left out, not repeated.
//
//	tenure_lease_held{lease}                             1 while the holder may act
//	tenure_lease_doubt{lease}                            1 while it waits for a renewal to tell
//	tenure_lease_token{lease}                            of the term
//	tenure_lease_confirmed_age_seconds{lease}            since the last confirmed renewal left
//	tenure_lease_trust_seconds{lease}                    left to act in, unless a renewal confirms
//	tenure_lease_trusted_until_timestamp_seconds{lease}  the same as an instant of this host's clock
//	tenure_lease_acquired_total{lease}                   terms that began
//	tenure_keeper_events_total{kind,reason}              what happened to terms, and why
//	tenure_keeper_renewals_total{code}                   requests that renewed, by outcome
//	tenure_keeper_renewal_duration_seconds               how long they took, at the holder
//
// # Not promised
//
// The label lease holds the name of a lease, so there is a series for each that the
// process holds, and for the last 1000 that it has held: a process that takes
// thousands of leases for short times should drop those series where it is scraped.
// Nothing is known of leases that other processes hold: the server and the store tell
// of those.
package prometheus
