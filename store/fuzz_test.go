package store_test

import (
	"strings"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// FuzzCheckName holds the rule for names to its own words.
func FuzzCheckName(f *testing.F) {
	for _, s := range []string{"a", "a/b", "a//b", "a/../b", "é", "", "-a", "A.b_c-d:e@f+g/9", strings.Repeat("x", 201), "a/", "a/.", "a\x00"} {
		f.Add(s)
	}
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:@+"
	f.Fuzz(func(t *testing.T, s string) {
		want := len(s) >= 1 && len(s) <= 200 && strings.Trim(s, allowed) == "" && !strings.ContainsAny(s[:1], "._-/:@+")
		for _, segment := range strings.Split(s, "/") {
			want = want && segment != "" && segment != "." && segment != ".."
		}
		if got := store.CheckName(s) == nil; got != want {
			t.Errorf("CheckName(%q) accepts: %v, want %v", s, got, want)
		}
		if want && store.CheckPrefix(s) != nil {
			t.Errorf("CheckPrefix(%q) refuses a name", s)
		}
	})
}
