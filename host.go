package tenure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/store"
)

// A platform's hook (after a resume, a snapshot restore, a new VM generation)
// must reach every keeper of the host before work goes on. Each process that
// wants to be told listens on a Unix socket of its own in a directory that only
// its user may enter; the hook connects to all of them and waits for each
// answer, which is sent after Doubt has returned.

// doubtMessage is what a hook sends, and doubtAnswer what it gets back: one
// JSON object each.
type doubtMessage struct {
	Kind DoubtKind `json:"kind"`
	Why  string    `json:"why"`
}

type doubtAnswer struct {
	Holder string `json:"holder"`
	Terms  int    `json:"terms"`
	Error  string `json:"error,omitempty"`
}

// DoubtReply says what one keeper answered to TellDoubt.
type DoubtReply struct {
	Socket string
	Holder string // the identity before the doubt
	Terms  int    // how many terms were in doubt or ended
	Err    error  // nil if the keeper answered
}

const (
	doubtSuffix  = ".doubt"
	maxDoubtSize = 8 << 10
	maxSocket    = 100 // bytes of a path that fit a Unix address everywhere
)

// DoubtDir returns the directory in which keepers of the present user listen:
// $TENURE_RUNTIME_DIR, else /run/tenure for root, else $XDG_RUNTIME_DIR/tenure,
// else a directory of this user in the system's temporary directory.
func DoubtDir() string {
	if dir := os.Getenv("TENURE_RUNTIME_DIR"); dir != "" {
		return dir
	}
	if os.Geteuid() == 0 {
		return "/run/tenure"
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "tenure")
	}
	return filepath.Join(os.TempDir(), "tenure-"+strconv.Itoa(os.Getuid()))
}

// DoubtDirs returns DoubtDir and, for root, the directories of all users.
func DoubtDirs() []string {
	dirs := []string{DoubtDir()}
	if os.Geteuid() == 0 && os.Getenv("TENURE_RUNTIME_DIR") == "" {
		for _, pattern := range []string{"/run/user/*/tenure", filepath.Join(os.TempDir(), "tenure-*")} {
			found, _ := filepath.Glob(pattern) // the patterns are well-formed
			dirs = append(dirs, found...)
		}
	}
	return dirs
}

// ListenDoubt takes in doubts from TellDoubt until ctx ends and then returns
// nil. It listens in dir, "" for DoubtDir, which it creates for this user
// alone; a directory that belongs to another user or that others may write to
// is refused. listening, if not nil, is called once a doubt would arrive.
func (k *Keeper) ListenDoubt(ctx context.Context, dir string, listening func()) error {
	if dir == "" {
		dir = DoubtDir()
	}
	if err := privateDir(dir); err != nil {
		return fmt.Errorf("tenure: listen for doubts: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%d-%s%s", os.Getpid(), store.NewAttempt().String()[:8], doubtSuffix))
	if len(path) > maxSocket {
		return fmt.Errorf("tenure: listen for doubts: path %q is longer than %d bytes; set TENURE_RUNTIME_DIR to a shorter directory", path, maxSocket)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("tenure: listen for doubts: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // removes the socket
	defer stop()
	if listening != nil {
		listening()
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(fmt.Errorf("tenure: listen for doubts: %w", err), l.Close())
		}
		k.takeDoubt(conn)
	}
}

// takeDoubt serves one hook. It is quick and bounded, so hooks queue up.
func (k *Keeper) takeDoubt(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	var msg doubtMessage
	answer := doubtAnswer{Holder: k.Holder(), Terms: len(k.list())}
	switch err := json.NewDecoder(io.LimitReader(conn, maxDoubtSize)).Decode(&msg); {
	case err != nil:
		answer.Error = err.Error()
	case msg.Kind != DoubtWake && msg.Kind != DoubtRestore:
		answer.Error = fmt.Sprintf("kind %q: must be %q or %q", msg.Kind, DoubtWake, DoubtRestore)
	default:
		k.Doubt(msg.Kind, msg.Why)
	}
	_ = json.NewEncoder(conn).Encode(answer) // a hook that has gone needs no answer
}

// privateDir makes dir for this user alone, or checks that it is so.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%q is not a directory", dir)
	}
	if uid, ok := owner(info); ok && uid != os.Geteuid() {
		return fmt.Errorf("directory %q belongs to user %d, not to %d; set TENURE_RUNTIME_DIR to one of your own", dir, uid, os.Geteuid())
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("directory %q may be written to by others (mode %04o); make it 0700", dir, info.Mode().Perm())
	}
	return nil
}

// TellDoubt tells every keeper that listens in one of dirs (nil: DoubtDirs) and
// returns what each answered. When it returns, no keeper that answered will act
// under a term until it was confirmed again. Sockets of processes that are gone
// are removed. The error is of the search; a keeper that did not answer in time
// has its own in the reply.
func TellDoubt(ctx context.Context, dirs []string, kind DoubtKind, why string) ([]DoubtReply, error) {
	if kind != DoubtWake && kind != DoubtRestore {
		return nil, fmt.Errorf("tenure: doubt %q: must be %q or %q", kind, DoubtWake, DoubtRestore)
	}
	if dirs == nil {
		dirs = DoubtDirs()
	}
	var sockets []string
	for _, dir := range dirs {
		found, err := filepath.Glob(filepath.Join(dir, "*"+doubtSuffix))
		if err != nil {
			return nil, fmt.Errorf("tenure: doubt: %w", err)
		}
		sockets = append(sockets, found...)
	}
	answers := make(chan *DoubtReply)
	for _, path := range sockets {
		go func() { answers <- tellOne(ctx, path, doubtMessage{kind, why}) }()
	}
	var replies []DoubtReply
	for range sockets {
		if r := <-answers; r != nil {
			replies = append(replies, *r)
		}
	}
	return replies, nil
}

// tellOne returns nil if nobody listens any more.
func tellOne(ctx context.Context, path string, msg doubtMessage) *DoubtReply {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		_ = os.Remove(path)
		return nil
	}
	reply := &DoubtReply{Socket: path, Err: err}
	if err != nil {
		return reply
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	var answer doubtAnswer
	if err := json.NewEncoder(conn).Encode(msg); err != nil {
		reply.Err = err
	} else if err := json.NewDecoder(io.LimitReader(conn, maxDoubtSize)).Decode(&answer); err != nil {
		reply.Err = err
	} else if answer.Error != "" {
		reply.Err = errors.New(answer.Error)
	}
	reply.Holder, reply.Terms = answer.Holder, answer.Terms
	return reply
}
