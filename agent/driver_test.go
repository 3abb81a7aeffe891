package agent_test

import (
	"context"
	"sync"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/fleet"
)

// machine is a driver whose work runs nowhere. It outlives agents.
type machine struct {
	mu     sync.Mutex
	runs   map[agent.Instance]*fakeRun
	starts []agent.Task
	refuse error // of the next starts
}

func newMachine() *machine { return &machine{runs: map[agent.Instance]*fakeRun{}} }

func (m *machine) Start(_ context.Context, t agent.Task) (agent.Run, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	m.starts = append(m.starts, t)
	r := &fakeRun{task: t, pid: 1000 + len(m.starts), done: make(chan struct{})}
	m.runs[agent.Instance{Work: t.Spec.ID, Token: t.Token}] = r
	return r, nil
}

func (m *machine) Attach(_ context.Context, of agent.Instance) (agent.Run, error) {
	if r := m.run(of); r != nil {
		return r, nil
	}
	return nil, agent.ErrNotRunning
}

func (m *machine) List() (list []agent.Instance, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for of := range m.runs {
		list = append(list, of)
	}
	return list, nil
}

func (m *machine) Forget(of agent.Instance) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.runs, of)
	return nil
}

func (m *machine) run(of agent.Instance) *fakeRun {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[of]
}

func (m *machine) started() []agent.Task {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]agent.Task(nil), m.starts...)
}

type fakeRun struct {
	task agent.Task
	pid  int
	done chan struct{}

	mu       sync.Mutex
	result   agent.Result
	stops    []string
	fences   int
	quiesced bool
	progress string
	stubborn bool // Stop does not end it at once
}

func (r *fakeRun) Task() agent.Task      { return r.task }
func (r *fakeRun) Done() <-chan struct{} { return r.done }
func (r *fakeRun) PID() int              { return r.pid }
func (r *fakeRun) Result() agent.Result {
	<-r.done
	return r.result
}

func (r *fakeRun) end(result agent.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
	default:
		r.result = result
		close(r.done)
	}
}

func (r *fakeRun) Stop(why string) {
	r.mu.Lock()
	r.stops = append(r.stops, why)
	stubborn := r.stubborn
	r.mu.Unlock()
	if stubborn {
		return
	}
	r.end(agent.Result{Ending: agent.Stopped, ExitCode: 143})
}

func (r *fakeRun) Fence() {
	r.mu.Lock()
	r.fences++
	policy := r.task.Spec.OnLoss
	r.quiesced = r.quiesced || policy == fleet.Quiesce
	r.mu.Unlock()
	if policy == fleet.Stop {
		r.end(agent.Result{Ending: agent.Halted, ExitCode: 143})
	}
}

func (r *fakeRun) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiesced = false
}

func (r *fakeRun) Quiesced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.quiesced
}

func (r *fakeRun) Progress() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress
}

func (r *fakeRun) set(marker string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress = marker
}

// counts returns how often it was fenced and stopped.
func (r *fakeRun) counts() (fences, stops int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fences, len(r.stops)
}
