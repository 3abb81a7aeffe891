// Package tenure decides, inside one process, whether it may act.
//
// A [Keeper] acquires terms of leases in a [store.Store], renews them all in
// one request per interval, and ends each of them locally before the store
// could grant it to another.
//
//	k, err := tenure.NewKeeper(st, tenure.Config{TTL: 30 * time.Second})
//	go k.Run(ctx)
//	term, err := k.Acquire(ctx, "nightly-invoice")
//	defer term.Release(context.WithoutCancel(ctx))
//	if token, ok := term.MayAct(); ok {
//		// write with the token
//	}
//
// The examples are whole programs. [Do] is the loop for work that goes on.
//
// # Promised
//
// The right ends at TrustedUntil, which is the moment the winning request left
// plus TTL minus margin, at the latest (P3). A process that slept, was stopped,
// suspended or forked learns of it in its first check (P4). Of two processes
// that continue from one memory image at most one is confirmed at each renewal
// (P5). A reply that got lost costs nothing (P6). Whatever ends a term has a
// reason with a stable code (P10).
//
// # Not promised
//
// A write that is already on its way when the right ends cannot be called
// back: check the token where the data lives (package fence). A pause of a
// whole virtual machine with all its clocks shows only when the platform tells
// ([Keeper.Doubt]) or the wall clock is put right.
//
// # How
//
// Each term is a state machine without clocks of its own (internal/term). One
// goroutine, Run, drives all of them: it looks at the clocks at least once a
// second or each quarter of the smallest margin, because timers do not fire in
// a suspend, sends what is due, and takes in the answers. [Term.MayAct] needs
// none of it: it compares the clock with what the last full look allowed.
//
//	Acquire ──► held ◄──► doubt
//	             │  ╲       │
//	     Release │   ╲ lost │ (reason)
//	             ▼    ╲     ▼
//	         released  ╰──► lost        a new term is a new Term
package tenure
