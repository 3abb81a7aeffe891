package minder

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/agent"
	"github.com/tenurehq/tenure/cmd/tenure/tree"
	"github.com/tenurehq/tenure/fence"
)

// Files of an instance.
const (
	taskFile     = "task.json"
	processFile  = "process.json"
	exitFile     = "exit.json"
	stopFile     = "stop.json"
	quiesceFile  = "quiesced"
	progressFile = "progress"
	logFile      = "output.log"
	lockFile     = "minder.lock"
)

// instance is the directory of one.
type instance string

func (i instance) path(name string) string { return filepath.Join(string(i), name) }

// task is what a minder is to run.
type task struct {
	Task   agent.Task `json:"task"`
	Env    []string   `json:"env"` // of the command, whole
	MaxLog int64      `json:"max_log"`
}

// processes says who runs an instance. It belongs to one boot and one numbering
// of processes.
type processes struct {
	Boot      string        `json:"boot"`
	Namespace string        `json:"namespace"`
	Minder    tree.Identity `json:"minder"`
	Command   tree.Identity `json:"command,omitzero"` // until it was forked, zero
	// Leftovers could not be killed so far.
	Leftovers []tree.Leftover `json:"leftovers,omitempty"`
}

// here reports whether the pids of p mean anything to this process.
func (p processes) here() bool {
	return p.Boot != "" && p.Boot == agent.BootID() && p.Namespace == namespace()
}

func namespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// stopOrder is in the stop file: the minder was told to end the item.
type stopOrder struct {
	Why string `json:"why"`
}

// first is the first and only line that a minder tells the driver which started it.
type first struct {
	PID     int    `json:"pid,omitempty"`     // of the command, which runs
	Running bool   `json:"running,omitempty"` // another minder has the instance
	Late    bool   `json:"late,omitempty"`    // the node may not act
	Refused string `json:"refused,omitempty"` // the system does not execute the command
	Code    int    `json:"code,omitempty"`    // with Refused, as a shell has it
	Failed  string `json:"failed,omitempty"`  // anything else
}

func (i instance) load(name string, to any) error {
	text, err := os.ReadFile(i.path(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("minder: %q: %w", i.path(name), err)
	}
	return nil
}

// save writes a file so that a reader finds the old or the new one, whole, and so
// that it survives a loss of power.
func (i instance) save(name string, from any) error {
	text, err := json.MarshalIndent(from, "", "\t")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(string(i), name+".tmp-*") // for this user alone
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), i.path(name))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	dir, err := os.Open(string(i))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// waitTake is take for a minder, which another may keep from its lock for a moment
// by looking whether it is free.
func (i instance) waitTake() (*os.File, bool, error) {
	for try := 0; ; try++ {
		f, mine, err := i.take()
		if mine || err != nil || try == 20 {
			return f, mine, err
		}
		<-time.After(5 * time.Millisecond)
	}
}

// remove removes files that may not be there.
func (i instance) remove(names ...string) {
	for _, name := range names {
		_ = os.Remove(i.path(name))
	}
}

// take returns the instance's lock, which its minder holds while it lives; false
// if another has it.
func (i instance) take() (*os.File, bool, error) {
	f, err := os.OpenFile(i.path(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, true, nil
	}
	f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, false, nil
	}
	return nil, false, err
}

// name is the directory of an instance. Ids hold no slash, and tokens no dot.
func name(of agent.Instance) string { return of.Work + "." + of.Token.String() }

func parseName(dir string) (agent.Instance, bool) {
	at := strings.LastIndexByte(dir, '.')
	if at < 1 {
		return agent.Instance{}, false
	}
	token, err := fence.ParseToken(dir[at+1:])
	return agent.Instance{Work: dir[:at], Token: token}, err == nil
}
