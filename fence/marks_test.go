package fence_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
)

func TestCheckMark(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "invoices", "db/accounts:17", `{"x"}`, strings.Repeat("x", fence.MaxResource)} {
		if err := fence.CheckMark(1, name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", " ", "a b", "a\nb", "a\x00", "\x7f", "é", strings.Repeat("x", fence.MaxResource+1)} {
		if err := fence.CheckMark(1, "good", name); !errors.Is(err, fence.ErrMark) {
			t.Errorf("%q: got %v, want ErrMark", name, err)
		}
	}
	for _, token := range []fence.Token{0, -1, -1 << 63} {
		if err := fence.CheckMark(token, "good"); !errors.Is(err, fence.ErrMark) {
			t.Errorf("token %s: got %v, want ErrMark", token, err)
		}
	}
}

func TestSlotError(t *testing.T) {
	t.Parallel()
	err := error(&fence.SlotError{Resource: "invoices", Slot: "2026-11-30", Token: 42, By: 41})
	if !errors.Is(err, fence.ErrSlotDone) || err.Error() != `fence: slot "2026-11-30" of "invoices" was done under token 41, not 42` {
		t.Errorf("%v", err)
	}
}
