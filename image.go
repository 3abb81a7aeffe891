package tenure

import (
	"context"

	"github.com/tenurehq/tenure/internal/term"
)

// Image returns the term as a memory image of this process would hold it. With
// Resume it lets the tests of this repository continue several processes from
// one state; its type keeps it from other uses, since a holder must never be
// read from a disk.
func (t *Term) Image() term.Image {
	t.mu.Lock()
	defer t.mu.Unlock()
	return term.Image{Name: t.name, Holder: t.holder, Token: t.token, Interval: t.times.interval, Warn: t.times.warn, Machine: t.m.Snapshot()}
}

// Resume goes on from an image, under the image's identity, as a copied process does.
func (k *Keeper) Resume(img term.Image) (*Term, error) {
	m := term.Resume(img.Machine)
	t := &Term{
		k: k, name: img.Name, holder: img.Holder, token: img.Token, m: m,
		times: times{ttl: img.Machine.Params.TTL, interval: img.Interval, margin: img.Machine.Params.Margin, warn: img.Warn},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	k.mu.Lock()
	k.holder = img.Holder
	since := k.doubts
	k.mu.Unlock()
	_, err := k.add(t, since)
	t.check()
	return t, err
}
