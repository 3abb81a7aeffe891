package agent_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
)

// askedStore counts the questions for the lease.
type askedStore struct {
	store.Store
	asked atomic.Int64
}

func (s *askedStore) Acquire(ctx context.Context, req store.Request) (store.Record, error) {
	defer s.asked.Add(1)
	return s.Store.Acquire(ctx, req)
}

// A former agent that has ended and that nobody has waited for is dead, whether it
// ends before its successor begins or while that waits for the lease.
func TestZombieIsReplaced(t *testing.T) {
	t.Parallel()
	for _, during := range []bool{false, true} {
		t.Run("ends during the wait "+strconv.FormatBool(during), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			long := func(c *agent.Config) { c.TTL, c.Interval, c.Margin = time.Hour, interval, time.Minute }
			r.srv.Assign("n1", spec("w", fleet.Stop))
			n := r.start(long)
			until(t, "the work", r.state("w"))
			token, _ := n.MayAct()
			if err := n.end(); err != nil {
				t.Fatal(err)
			}
			former := exec.Command("sleep", "3600")
			if err := former.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = former.Process.Kill(); _ = former.Wait() })
			writeTerm(t, r.dir, former.Process.Pid)
			die := func() {
				if err := former.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				until(t, "a zombie", func() bool { return stat(t, former.Process.Pid)[0] == "Z" })
			}
			if !during {
				die()
			}
			st := &askedStore{Store: r.srv.Store()}
			again := r.start(long, func(c *agent.Config) { c.Store = st })
			if during {
				until(t, "a question for the lease", func() bool { return st.asked.Load() > 0 })
				if _, may := again.MayAct(); may {
					t.Fatal("the term of a living process was replaced")
				}
				die()
			}
			until(t, "the lease", mayAct(again))
			if got, _ := again.MayAct(); got != token+1 {
				t.Errorf("got token %s, want %s", got, token+1)
			}
			if r.runs("w") != 1 || isDone(r.host.run(agent.Instance{Work: "w", Token: 1})) {
				t.Error("the work was ended or begun anew")
			}
		})
	}
}

// stat returns what the system says of a process, from its state on.
func stat(t *testing.T, pid int) []string {
	t.Helper()
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(line[strings.LastIndexByte(string(line), ')')+1:]))
}

// writeTerm makes a process the one that has left the term in dir.
func writeTerm(t *testing.T, dir string, pid int) {
	t.Helper()
	path := filepath.Join(dir, "term.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var saved map[string]json.RawMessage
	if err := json.Unmarshal(text, &saved); err != nil {
		t.Fatal(err)
	}
	saved["pid"], saved["start"] = json.RawMessage(strconv.Itoa(pid)), json.RawMessage(stat(t, pid)[19])
	text, err = json.Marshal(saved)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
