package minder

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/agent"
)

const (
	defaultMaxLog = 8 << 20
	// comingUp is how long a minder that was started by an agent that died may
	// take to say who it is.
	comingUp = 5 * time.Second
)

// Driver is an agent.Driver for processes of this host. It is safe for concurrent
// use.
type Driver struct {
	cfg Config
	env map[string]string
}

var _ agent.Driver = (*Driver)(nil)

// New makes the directory and returns a Driver over it.
func New(cfg Config) (*Driver, error) {
	if cfg.Dir == "" {
		return nil, errors.New("minder: Dir is needed")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("minder: %w", err)
	}
	cfg.Dir = dir
	if cfg.MaxLog <= 0 {
		cfg.MaxLog = defaultMaxLog
	}
	d := &Driver{cfg: cfg, env: map[string]string{}}
	if cfg.Env == nil {
		for _, k := range []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR"} {
			if v, ok := os.LookupEnv(k); ok {
				d.env[k] = v
			}
		}
	}
	for _, v := range cfg.Env {
		k, v, _ := strings.Cut(v, "=")
		d.env[k] = v
	}
	return d, nil
}

func (d *Driver) instance(of agent.Instance) instance {
	return instance(filepath.Join(d.cfg.Dir, name(of)))
}

// Start implements agent.Driver.
func (d *Driver) Start(ctx context.Context, t agent.Task) (agent.Run, error) {
	of := agent.Instance{Work: t.Spec.ID, Token: t.Token}
	dir := d.instance(of)
	if err := os.MkdirAll(string(dir), 0o700); err != nil {
		return nil, fmt.Errorf("minder: start %q: %w", of.Work, err)
	}
	env := maps.Clone(d.env)
	maps.Copy(env, t.Spec.Env)
	maps.Copy(env, t.Env)
	env["TENURE_PROGRESS_FILE"], env["TENURE_QUIESCE_FILE"] = dir.path(progressFile), dir.path(quiesceFile)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	if err := dir.save(taskFile, task{Task: t, Env: list, MaxLog: d.cfg.MaxLog}); err != nil {
		return nil, fmt.Errorf("minder: start %q: %w", of.Work, err)
	}
	pid, said, err := launch(ctx, dir)
	switch {
	case err != nil:
		return nil, fmt.Errorf("minder: start %q: %w", of.Work, err)
	case said.Running: // by an agent that died in the middle of this
		return d.Attach(ctx, of)
	case said.Late:
		err = agent.ErrLate
	case said.Refused != "":
		err = &agent.StartError{Work: of.Work, ExitCode: said.Code, Err: errors.New(said.Refused)}
	case said.PID == 0:
		err = fmt.Errorf("minder: start %q: %s", of.Work, said.Failed)
	}
	if err != nil {
		reap(pid) // it has nothing more to do
		return nil, errors.Join(err, os.RemoveAll(string(dir)))
	}
	return d.Attach(ctx, of)
}

// launch starts a minder and returns its pid and what it says first. What is
// started is detached at once and lives on, whatever becomes of the caller.
func launch(ctx context.Context, dir instance) (pid int, said first, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, said, err
	}
	defer null.Close()
	output, err := os.OpenFile(dir.path(logFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, said, err
	}
	defer output.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, said, err
	}
	defer r.Close()
	// Its own executable, even if the file was replaced since; and no environment.
	pid, err = syscall.ForkExec("/proc/self/exe", []string{marker, string(dir)}, &syscall.ProcAttr{
		Dir: "/", Files: []uintptr{null.Fd(), output.Fd(), output.Fd(), w.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	w.Close()
	if err != nil {
		return 0, said, err
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	if err := json.NewDecoder(bufio.NewReader(r)).Decode(&said); err != nil {
		go reap(pid) // it may still come up; the next try finds it
		return pid, said, fmt.Errorf("the minder did not answer: %w", errors.Join(context.Cause(ctx), err))
	}
	if said.Running {
		reap(pid)
	}
	return pid, said, nil
}

// reap waits for a child of this process to end.
func reap(pid int) {
	for {
		if _, err := syscall.Wait4(pid, nil, 0, nil); !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// Attach implements agent.Driver.
func (d *Driver) Attach(ctx context.Context, of agent.Instance) (agent.Run, error) {
	dir := d.instance(of)
	r := &run{dir: dir, done: make(chan struct{})}
	if err := dir.load(taskFile, &r.task); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.Join(agent.ErrNotRunning, err)
		}
		return nil, err
	}
	if dir.load(exitFile, &r.result) == nil {
		close(r.done)
		return r, nil
	}
	procs, err := found(ctx, dir)
	if err != nil {
		return nil, err
	}
	r.procs = procs
	go r.watch()
	return r, nil
}

// found returns who runs an instance that has not ended.
func found(ctx context.Context, dir instance) (processes, error) {
	limit := time.Now().Add(comingUp)
	for {
		var p processes
		err := dir.load(processFile, &p)
		if err == nil && p.here() && p.Command.PID != 0 {
			return p, nil
		}
		// Not noted yet, or what an earlier boot has left.
		held, free, lockErr := dir.take()
		switch {
		case lockErr != nil:
			return p, fmt.Errorf("minder: %w", lockErr)
		case free:
			held.Close()
			if err == nil && p.here() && len(session(p.Minder)) > 0 {
				return p, nil // the minder died before it could note the command
			}
			return p, agent.ErrNotRunning
		case time.Now().After(limit):
			return p, fmt.Errorf("minder: a minder has %q and does not say whom it minds", dir)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}

// List implements agent.Driver.
func (d *Driver) List() ([]agent.Instance, error) {
	entries, err := os.ReadDir(d.cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("minder: %w", err)
	}
	var list []agent.Instance
	for _, e := range entries {
		if of, ok := parseName(e.Name()); ok && e.IsDir() {
			list = append(list, of)
		}
	}
	return list, nil
}

// Forget implements agent.Driver.
func (d *Driver) Forget(of agent.Instance) error {
	dir := d.instance(of)
	held, free, err := dir.take()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("minder: forget %q: %w", of.Work, err)
	case !free:
		return fmt.Errorf("minder: forget %q: its minder still lives", of.Work)
	}
	defer held.Close()
	return os.RemoveAll(string(dir))
}
