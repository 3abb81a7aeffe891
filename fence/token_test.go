package fence_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/tenurehq/tenure/fence"
)

func TestTokenText(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]fence.Token{"1": 1, "42": 42, "9007199254740993": 1<<53 + 1, "9223372036854775807": 1<<63 - 1} {
		got, err := fence.ParseToken(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("ParseToken(%q) = %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "0", "-1", "+1", "01", "1.0", "1e3", " 1", "1 ", "9223372036854775808", "0x1", "٣"} {
		if got, err := fence.ParseToken(s); !errors.Is(err, fence.ErrToken) {
			t.Errorf("ParseToken(%q) = %s, %v; want ErrToken", s, got, err)
		}
	}
}

// A token is a string in JSON, exact above 2^53.
func TestTokenJSON(t *testing.T) {
	t.Parallel()
	for _, token := range []fence.Token{0, 1, 1<<53 + 1, 1<<63 - 1} {
		b, err := json.Marshal(token)
		if err != nil || string(b) != `"`+token.String()+`"` {
			t.Errorf("%s is %s in JSON (%v)", token, b, err)
		}
		var back fence.Token
		if err := json.Unmarshal(b, &back); err != nil || back != token {
			t.Errorf("%s came back as %s (%v)", b, back, err)
		}
	}
	for _, s := range []string{`"-1"`, `"x"`, `""`, `{}`} {
		var token fence.Token
		if json.Unmarshal([]byte(s), &token) == nil {
			t.Errorf("%s was read as token %s", s, token)
		}
	}
}

func TestStaleError(t *testing.T) {
	t.Parallel()
	err := error(&fence.StaleError{Resource: "invoices", Token: 41, Current: 42})
	if !errors.Is(err, fence.ErrStale) || err.Error() != `fence: stale token 41 for "invoices": 42 is current` {
		t.Errorf("%v", err)
	}
	if got := (&fence.StaleError{Resource: "x", Token: 1}).Error(); got != `fence: stale token 1 for "x": no such term` {
		t.Errorf("%s", got)
	}
}
