package agent_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/agent/agenttest"
	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fleet"
)

// The test binary is the busy agent, too.
func TestMain(m *testing.M) {
	if os.Getenv("AGENT_PART") == "busy" {
		os.Exit(busyPart())
	}
	os.Exit(m.Run())
}

// Heartbeats keep their interval while 64 goroutines of the process take all that
// its processors give, the facts hang and an answer to a poll does not come. The
// interval is not shorter, because Go's scheduler lets what the network has woken
// wait behind goroutines that compute, on two busy processors for about a second.
func TestBeatsUnderLoad(t *testing.T) {
	t.Parallel()
	if os.Getenv("TENURE_LONG") == "" {
		t.Skip("takes 40 s; set TENURE_LONG=1")
	}
	r := newRig(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const every = 6 * time.Second
	busy := exec.CommandContext(t.Context(), self)
	busy.Env = append(os.Environ(), "AGENT_PART=busy", "AGENT_SERVER="+r.http.URL, "AGENT_DIR="+r.dir, "AGENT_INTERVAL="+every.String())
	busy.Stderr = t.Output()
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = busy.Process.Kill()
		_ = busy.Wait()
	}()
	const want = 6
	deadline := time.Now().Add(3 * want * every)
	for len(r.srv.Beats()) < want && time.Now().Before(deadline) {
		<-time.After(every / 10)
	}
	beats := r.srv.Beats()
	if len(beats) < want {
		t.Fatalf("%d beats in %s", len(beats), 3*want*every)
	}
	var gaps []time.Duration
	for i := 1; i < len(beats); i++ {
		gaps = append(gaps, beats[i].At.Sub(beats[i-1].At))
		if beats[i].Renew != nil && beats[i].Renew.Token != 1 {
			t.Errorf("token %s: the first term was lost", beats[i].Renew.Token)
		}
	}
	slices.Sort(gaps)
	if p99 := gaps[len(gaps)*99/100]; p99 >= 2*every {
		t.Errorf("the p99 of the gaps between beats is %s, want below %s", p99, 2*every)
	}
	if !slices.ContainsFunc(beats, func(b agenttest.Beat) bool { return b.Renew != nil && b.LateMS > 0 }) {
		t.Error("no beat tells of late timers")
	}
}

// busyPart is the agent of TestBeatsUnderLoad.
func busyPart() int {
	every, err := time.ParseDuration(os.Getenv("AGENT_INTERVAL"))
	if err != nil {
		return 2
	}
	c, err := api.NewClient(api.Config{Servers: []string{os.Getenv("AGENT_SERVER")}})
	if err != nil {
		return 2
	}
	a, err := agent.New(agent.Config{
		Node: "n1", Server: c, Store: api.NewStore(c), StateDir: os.Getenv("AGENT_DIR"), TTL: 6 * every, Interval: every, Poll: time.Hour,
		Facts: func() fleet.Facts { select {} },
	})
	if err != nil {
		return 2
	}
	go func() {
		for _, ok := a.MayAct(); !ok; _, ok = a.MayAct() {
			<-time.After(time.Millisecond)
		}
		for range 64 {
			go func() {
				for x := uint64(1); ; x = x*2862933555777941757 + 3037000493 {
					runtime.KeepAlive(x)
				}
			}()
		}
	}()
	fmt.Fprintln(os.Stderr, a.Run(context.Background()))
	return 1
}
