// Package dashboard shows a fleet to people, in a browser: pages below /ui/ over
// the interface of a tenure server.
//
// # Promised
//
// It is a client of that interface and of nothing else: it asks it in process,
// with the credential of whoever looks, so that roles, refusals and what is true
// are those of the interface. Whatever comes from outside is text: a name, a
// reason or a marker creates no element, and a character that could act on how
// text is shown is written out. Everything that a page needs is in the binary.
//
// A page is kept up to date while somebody looks at it: once each [Tick], and when
// the ledger grows. What it costs the server depends on how many different pages
// are looked at, not on how many people look. A page that gets no stream, since too
// many have one, asks by itself every 5 s and says so, until it gets one.
//
// # Not promised
//
// Without scripts a page shows how it was when it was loaded. A page says for
// itself when it is no longer kept up to date.
//
// # How
//
//	browser ── GET /ui/… ──► identity (whoami) ─► cache (URL, role) ─► page: api.Client ─► html/template
//	        ◄─ "tick" ────── live: one stream of events for all viewers, and a clock
//	        ── POST /ui/… ─► api.Client, and back to the page
//
// The scripts are htmx, which fetches the part of a page that changes and fits it
// in, uPlot, which draws the charts, and a small one of our own.
package dashboard
