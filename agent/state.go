package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// ErrStateInUse reports that another agent has the state directory.
var ErrStateInUse = errors.New("agent: the state directory is in use by another agent")

// Files of the state directory.
const (
	lockName     = "agent.lock"
	ordersName   = "orders.json"
	termName     = "term.json"
	deadlineName = "deadline"
)

// state is the agent's directory, held exclusively. It keeps what the next agent
// may need, and nothing by which anybody could act.
type state struct {
	dir           string
	held          *os.File
	device, inode uint64
}

func openState(dir string) (*state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("agent: state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent: state directory: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		err = flock(f)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("agent: state directory %q: %w", dir, err)
	}
	torn, _ := filepath.Glob(filepath.Join(dir, "*.json.tmp-*")) // the pattern is well-formed
	for _, path := range torn {
		_ = os.Remove(path)
	}
	s := &state{dir: dir, held: f}
	s.device, s.inode = place(info)
	return s, nil
}

func (s *state) path(name string) string { return filepath.Join(s.dir, name) }

func (s *state) close() { _ = s.held.Close() }

// savedOrders are the last complete orders.
type savedOrders struct {
	Node   string     `json:"node"`
	Orders api.Orders `json:"orders"`
}

// saveOrders writes them so that they survive a loss of power: the node's intent
// and what it follows must not be older after it than what was acted on.
func (s *state) saveOrders(node string, o api.Orders) error {
	return s.replace(ordersName, savedOrders{node, o}, true)
}

// loadOrders returns what was saved for node; false if there is nothing.
func (s *state) loadOrders(node string) (api.Orders, bool, error) {
	var saved savedOrders
	err := s.load(ordersName, &saved)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.Orders{}, false, nil
	case err != nil:
		return api.Orders{}, false, err
	}
	return saved.Orders, saved.Node == node, nil
}

// savedTerm is what the store knows of the node's term, and whose it is.
type savedTerm struct {
	Boot      string          `json:"boot"`
	Namespace string          `json:"namespace"`
	PID       int             `json:"pid"`
	Start     uint64          `json:"start"`
	Device    uint64          `json:"device"` // of the lock file
	Inode     uint64          `json:"inode"`
	Name      string          `json:"name"`
	Token     fence.Token     `json:"token"`
	TTL       time.Duration   `json:"ttl_ns"`
	Known     []store.Attempt `json:"known"`
}

// saveTerm notes the attempts that a record of the term may hold. It is not
// synced, since it means nothing after the host has crashed.
func (s *state) saveTerm(name string, token fence.Token, ttl time.Duration, known []store.Attempt) error {
	start, _ := processStart(os.Getpid())
	return s.replace(termName, savedTerm{
		Boot: BootID(), Namespace: namespace(), PID: os.Getpid(), Start: start, Device: s.device, Inode: s.inode,
		Name: name, Token: token, TTL: ttl, Known: known,
	}, false)
}

// dropTerm forgets it: it was given back or is over.
func (s *state) dropTerm() error {
	if err := os.Remove(s.path(termName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// leftTerm returns the term that a former agent of this directory left, if that
// agent has provably ended: it was of this boot, of this numbering of processes
// and in this very place, and is gone. The exclusive lock alone shows that for
// the place; the rest shows that this is the place.
func (s *state) leftTerm(name string) (store.Grant, bool) {
	var t savedTerm
	if s.load(termName, &t) != nil {
		return store.Grant{}, false
	}
	boot := BootID()
	switch {
	case boot == "" || t.Boot != boot, t.Namespace == "" || t.Namespace != namespace():
	case s.inode == 0 || t.Device != s.device || t.Inode != s.inode:
	case t.Name != name, t.Token < 1, len(t.Known) == 0 || len(t.Known) > store.MaxKnown:
	default:
		if start, there := processStart(t.PID); there && start == t.Start && t.PID != os.Getpid() {
			return store.Grant{}, false
		}
		return store.Grant{Name: name, Token: t.Token, TTL: t.TTL, Attempt: store.NewAttempt(), Known: t.Known}, true
	}
	return store.Grant{}, false
}

func (s *state) load(name string, to any) error {
	text, err := os.ReadFile(s.path(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("agent: %q: %w", s.path(name), err)
	}
	return nil
}

// replace writes a file so that a reader finds the old or the new one, whole.
func (s *state) replace(name string, from any, durable bool) error {
	text, err := json.MarshalIndent(from, "", "\t")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, name+".tmp-*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), s.path(name))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	if !durable {
		return nil
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
