package tenure

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
)

// WithMarks moves the marks of the resources to the new term's token before
// Acquire or TryAcquire returns. From then on the targets refuse every writer of
// an earlier term, also if the new holder has not written yet. Without resources
// the lease's name is the resource.
//
// If a mark cannot be moved the term is given back, and the error is that of
// fence.Marks. *fence.StaleError means that the target has seen a larger token
// than the store gives out, so that the store is an older copy or another one:
// raise its floor to the token that the error names.
func WithMarks(marks fence.Marks, resources ...string) AcquireOption {
	return func(o *acquireOptions) { o.marks = append(o.marks, termMarks{marks, resources}) }
}

type termMarks struct {
	marks     fence.Marks
	resources []string
}

// raiseMarks moves the marks of the term, or gives the term back.
func (t *Term) raiseMarks(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })() // nobody writes under it then
	for _, m := range t.opts.marks {
		resources := m.resources
		if len(resources) == 0 {
			resources = []string{t.name}
		}
		for _, resource := range resources {
			if _, err := m.marks.Raise(ctx, resource, t.token); err != nil {
				var lost *LostError
				if !errors.As(t.Err(), &lost) || lost.Reason != ReasonRestored { // a restored term waits to be replaced
					_ = t.Release(context.WithoutCancel(ctx)) // it would lapse by itself; the error at hand matters more
				}
				if cause := context.Cause(ctx); cause != nil {
					err = fmt.Errorf("%w: %w", cause, err)
				}
				return fmt.Errorf("raise the mark of %q to token %s: %w", resource, t.token, err)
			}
		}
	}
	return nil
}
