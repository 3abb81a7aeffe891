package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/clock"
	"github.com/tenurehq/tenure/store"
)

// What is not of this boot, this numbering of processes and this very directory
// proves nothing.
func TestLeftTermNeedsProof(t *testing.T) {
	t.Parallel()
	if BootID() == "" {
		t.Skip("this system does not tell its boots apart")
	}
	const lease = "node/n1"
	write := func(t *testing.T, dir string) *state {
		t.Helper()
		s, err := openState(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.saveTerm(lease, 7, time.Minute, []store.Attempt{store.NewAttempt()}); err != nil {
			t.Fatal(err)
		}
		s.close()
		return s
	}
	edit := func(from, to string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, termName)
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), from) {
				t.Fatalf("%v: no %q in %s", err, from, text)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   bool
	}{
		"as it was left":    {func(*testing.T, string) {}, true},
		"another boot":      {edit(BootID(), "11111111-2222-3333-4444-555555555555"), false},
		"another namespace": {edit(namespace(), "pid:[1]"), false},
		"another lease":     {edit(lease, "node/n2"), false},
		"torn":              {edit(`"known"`, `"known`), false},
		"a living process": {func(t *testing.T, dir string) {
			ppid := os.Getppid()
			start, _ := processStart(ppid)
			s := &state{dir: dir}
			var saved savedTerm
			if err := s.load(termName, &saved); err != nil {
				t.Fatal(err)
			}
			saved.PID, saved.Start = ppid, start
			if err := s.replace(termName, saved, false); err != nil {
				t.Fatal(err)
			}
		}, false},
		"a copy": {func(t *testing.T, dir string) { // the files the same, the place another
			text, err := os.ReadFile(filepath.Join(dir, termName))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(dir, dir+".old"); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, termName), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "state")
			write(t, dir)
			c.change(t, dir)
			s, err := openState(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer s.close()
			grant, ok := s.leftTerm(lease)
			if ok != c.want {
				t.Errorf("got %t, want %t", ok, c.want)
			}
			if ok && (grant.Token != 7 || len(grant.Known) != 1) {
				t.Errorf("got %+v, want token 7 with its attempt", grant)
			}
		})
	}
}

// A reader finds the old or the new deadline, or an error; never a mixture.
func TestDeadlineFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "deadline")
	if _, err := ReadDeadline(path); !errors.Is(err, ErrDeadline) {
		t.Errorf("missing: got %v, want ErrDeadline", err)
	}
	d := Deadline{Boot: BootID(), Token: 3, Since: time.Second, Until: 9 * time.Hour, Margin: 12 * time.Second, Fenced: true}
	if err := WriteDeadline(path, d); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadDeadline(path); err != nil || got != d {
		t.Errorf("got %+v, %v; want %+v", got, err, d)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range text { // any byte that is of another write
		torn := append([]byte(nil), text...)
		torn[i] ^= 1
		if got, err := decodeDeadline(torn); err == nil && got != d {
			t.Fatalf("byte %d flipped: read as %+v", i, got)
		}
		if _, err := decodeDeadline(text[:i]); err == nil {
			t.Fatalf("cut at byte %d: no error", i)
		}
	}
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := time.Duration(1); ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = WriteDeadline(path, Deadline{Boot: "b", Since: i, Until: i, Margin: i})
			}
		}
	})
	for range 2000 {
		if got, err := ReadDeadline(path); err == nil && got != d && (got.Since != got.Until || got.Until != got.Margin) {
			t.Fatalf("a mixture: %+v", got)
		}
	}
	close(stop)
	writing.Wait()
}

func TestDeadlineExtends(t *testing.T) {
	t.Parallel()
	now := clock.Boot()
	d := Deadline{Boot: "b", Token: 1, Since: now, Until: now + 10, Margin: 8}
	for name, c := range map[string]struct {
		next Deadline
		want bool
	}{
		"renewed":       {Deadline{Boot: "b", Token: 1, Since: now, Until: now + 20}, true},
		"next, no gap":  {Deadline{Boot: "b", Token: 2, Since: now + 9, Until: now + 20}, true},
		"next, a gap":   {Deadline{Boot: "b", Token: 2, Since: now + 11, Until: now + 20}, false},
		"another boot":  {Deadline{Boot: "c", Token: 1, Since: now, Until: now + 20}, false},
		"fenced":        {Deadline{Boot: "b", Token: 1, Since: now, Until: now + 20, Fenced: true}, false},
		"nothing newer": {d, false},
	} {
		if got := d.Extends(c.next); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
	for _, c := range []struct{ grace, want time.Duration }{{2, 2}, {100, 4}, {-1, 0}} {
		if got := d.KillAt(c.grace) - d.Until; got != c.want {
			t.Errorf("grace %d: killed %d after, want %d", c.grace, got, c.want)
		}
	}
}
