package dashboard

import (
	"context"
	"sync"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
)

// maxPasts bounds how many leases have a past that is remembered.
const maxPasts = 4096

// past is what the list of leases says of a lease's terms.
type past struct {
	Takeovers int  // terms that followed one that was not released
	Terms     int  // of so many
	Older     bool // and there were more
	// Cause is how the term before the last one ended, "" if none is known, and Gap how
	// long nobody had the lease then, in tenths of a second.
	Cause string
	Gap   time.Duration
}

// pasts remember the pasts of leases. A past changes with a new term, whose token is
// another: each is asked for once a term, however often the list is shown.
type pasts struct {
	mu   sync.Mutex
	kept map[string]pastAt // by name
}

type pastAt struct {
	token fence.Token
	past  *past
}

// of returns the past of a lease, nil if the store keeps none.
func (p *pasts) of(ctx context.Context, leases *api.Store, rec *api.Record) (*past, error) {
	p.mu.Lock()
	at, ok := p.kept[rec.Name]
	p.mu.Unlock()
	if ok && at.token == rec.Token {
		return at.past, nil
	}
	b, err := readBands(ctx, leases, rec)
	if err != nil {
		return nil, err
	}
	at = pastAt{token: rec.Token}
	if b != nil {
		last := b.Terms[0]
		at.past = &past{b.Takeovers, len(b.Terms), b.Older, last.Cause, last.Gap.Round(100 * time.Millisecond)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil || len(p.kept) >= maxPasts {
		p.kept = map[string]pastAt{}
	}
	p.kept[rec.Name] = at
	return at.past, nil
}
