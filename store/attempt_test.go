package store_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/tenurehq/tenure/store"
)

func TestNewAttempt(t *testing.T) {
	t.Parallel()
	const senders, each = 8, 2000
	var mu sync.Mutex
	seen := make(map[store.Attempt]bool, senders*each)
	var sending sync.WaitGroup
	for range senders {
		sending.Go(func() {
			drawn := attempts(each)
			mu.Lock()
			defer mu.Unlock()
			for _, a := range drawn {
				if a.IsZero() || seen[a] {
					t.Errorf("attempt %s is zero or was there before", a)
				}
				seen[a] = true
			}
		})
	}
	sending.Wait()
}

func TestAttemptText(t *testing.T) {
	t.Parallel()
	a := store.NewAttempt()
	text, err := json.Marshal(map[string]store.Attempt{"attempt": a, "none": {}})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"attempt":"` + a.String() + `","none":"` + strings.Repeat("0", 32) + `"}`; string(text) != want {
		t.Errorf("got %s, want %s", text, want)
	}
	var back map[string]store.Attempt
	if err := json.Unmarshal(text, &back); err != nil || back["attempt"] != a || !back["none"].IsZero() {
		t.Errorf("round trip: got %v and error %v, want %s", back, err, a)
	}
	for _, bad := range []string{"", "00", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("g", 32), strings.Repeat("é", 16)} {
		if err := new(store.Attempt).UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was read as an attempt", bad)
		}
	}
}
