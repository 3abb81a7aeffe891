//go:build unix

// Package pgtest gives tests a PostgreSQL server of their own.
//
// A server lives in a temporary directory, listens on a free port of
// 127.0.0.1 and on a unix socket, and belongs to the test binary: it is a
// direct child, ends when it is stopped, and on Linux also when the binary is
// killed. It does not sync to disk at set-up but does in its commits.
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
//
//	func TestX(t *testing.T) { url := pgtest.Database(t) … }      // shared server, fresh database
//	func TestY(t *testing.T) { srv := pgtest.Start(t, pgtest.Options{}) … } // a server to kill and pause
//
// The programs are looked for in PATH, in `pg_config --bindir` and in
// /usr/lib/postgresql/*/bin. If they are missing, a test is skipped, or fails
// when TENURE_TEST_STRICT=1. TENURE_TEST_POSTGRES, the URL of a superuser's
// database, makes Database use that server instead of starting one.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ErrMissing reports that something that is not installed is needed. Its
// message names the line that installs it.
var ErrMissing = errors.New("pgtest: missing")

const (
	startLimit = 60 * time.Second // until a server answers, on a loaded machine
	stopLimit  = 30 * time.Second
)

// Options of a server.
type Options struct {
	Settings []string // as for postgres -c: "max_prepared_transactions=4"
	// StepClock runs the server under libfaketime, so that Server.StepClock works.
	StepClock bool
}

// Server is a running server. Its methods are for one goroutine at a time.
type Server struct {
	bin, dir  string
	port      int
	opt       Options
	cred      *syscall.Credential
	child     *child
	databases atomic.Int64
}

// Start starts a server that is stopped when the test ends. A failed test
// leaves the directory and says where it is.
func Start(tb testing.TB, opt Options) *Server {
	tb.Helper()
	s, err := New(opt)
	if err != nil {
		unavailable(tb, err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			s.child.kill()
			tb.Logf("pgtest: left the server's files in %s", s.dir)
			return
		}
		s.Stop()
	})
	return s
}

func unavailable(tb testing.TB, err error) {
	tb.Helper()
	if errors.Is(err, ErrMissing) && os.Getenv("TENURE_TEST_STRICT") != "1" {
		tb.Skip(err)
	}
	tb.Fatal(err)
}

// New starts a server. The caller stops it.
func New(opt Options) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	if opt.StepClock && faketime() == "" {
		return nil, fmt.Errorf("%w: libfaketime, which steps the server's clock; run: apt-get install -y faketime", ErrMissing)
	}
	s := &Server{bin: bin, opt: opt}
	if s.cred, err = unprivileged(); err != nil {
		return nil, err
	}
	// The path of the socket may have 107 bytes, so t.TempDir is too long.
	if s.dir, err = os.MkdirTemp("", "pg"); err != nil {
		return nil, err
	}
	if err := s.initialize(); err != nil {
		_ = os.RemoveAll(s.dir) // the error at hand matters more
		return nil, err
	}
	return s, nil
}

func (s *Server) initialize() error {
	if s.cred != nil {
		if err := os.Chown(s.dir, int(s.cred.Uid), int(s.cred.Gid)); err != nil {
			return err
		}
	}
	out, err := s.command("initdb", "-D", s.Data(), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		return fmt.Errorf("pgtest: initdb: %w\n%s", err, out)
	}
	// Between the choice of a free port and its use somebody else may take it.
	for range 5 {
		if s.port, err = freePort(); err != nil {
			return err
		}
		if err = s.launch(); err == nil || !strings.Contains(s.log(), "Address already in use") {
			return err
		}
	}
	return err
}

// Restart starts the server again, after Kill or Halt, on the same port and data.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	if err := s.launch(); err != nil {
		tb.Fatal(err)
	}
}

func (s *Server) launch() error {
	args := []string{"-D", s.Data(), "-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=" + s.dir, "-c", "shared_buffers=32MB"}
	for _, set := range s.opt.Settings {
		args = append(args, "-c", set)
	}
	cmd := s.command("postgres", args...)
	if s.opt.StepClock {
		// The library must be loaded after the change of user: its semaphore
		// would belong to root otherwise, and the server would end at once.
		rc := filepath.Join(s.dir, "clock")
		if err := os.WriteFile(rc, []byte("+0\n"), 0o644); err != nil {
			return err
		}
		program := cmd.Args
		cmd = s.command("env", append([]string{"LD_PRELOAD=" + faketime(), "FAKETIME_TIMESTAMP_FILE=" + rc,
			"FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"}, program...)...)
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	c, err := startChild(cmd)
	if err != nil {
		return err
	}
	s.child = c
	deadline := time.Now().Add(startLimit)
	for {
		if out, err := s.psql("postgres", "SELECT 1"); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			c.kill()
			return fmt.Errorf("pgtest: the server did not answer within %s: %w\n%s%s", startLimit, err, out, s.log())
		}
		select {
		case <-c.done:
			return fmt.Errorf("pgtest: the server ended at its start:\n%s", s.log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Data is the server's data directory.
func (s *Server) Data() string { return filepath.Join(s.dir, "data") }

func (s *Server) log() string {
	b, _ := os.ReadFile(filepath.Join(s.dir, "log")) // for a message; empty will do
	return string(b)
}

// command prepares one of PostgreSQL's programs as the server's user.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	path := filepath.Join(s.bin, name)
	if name == "env" {
		path = name
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = s.dir
	cmd.Env = environment()
	cmd.SysProcAttr = attr(s.cred)
	return cmd
}

// environment is ours without PG… settings, which the programs would follow.
func environment() []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "PG") || strings.HasPrefix(e, "LC_") })
	return append(env, "LC_ALL=C")
}

func (s *Server) psql(database, statement string) ([]byte, error) {
	return psql(s.bin, s.url(database), statement)
}

func psql(bin, target, statement string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", target, "-c", statement)
	cmd.Env = append(environment(), "PGCONNECT_TIMEOUT=5")
	return cmd.CombinedOutput()
}

// Addr is the host and port at which the server listens.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Socket is the directory of the server's unix socket.
func (s *Server) Socket() string { return s.dir }

// Log returns what the server wrote to its log.
func (s *Server) Log() string { return s.log() }

func (s *Server) url(database string) string {
	return "postgres://postgres@" + s.Addr() + "/" + database + "?sslmode=disable"
}

// Database makes an empty database and returns its URL, for a superuser.
func (s *Server) Database(tb testing.TB) string {
	tb.Helper()
	name := fmt.Sprintf("t%d", s.databases.Add(1))
	if out, err := s.psql("postgres", "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("pgtest: create database: %v\n%s", err, out)
	}
	return s.url(name)
}

// Pause stops the server's processes where they stand, the postmaster first so
// that no new one starts. Resume lets them go on.
func (s *Server) Pause() { s.child.pause() }

// Resume ends a Pause.
func (s *Server) Resume() { s.child.resume() }

// Kill ends every process of the server at once, as a loss of power would. The
// data stay for Restart.
func (s *Server) Kill() { s.child.kill() }

// Halt ends the server in order, rolling back what is open. The data stay for Restart.
func (s *Server) Halt() { s.child.stop(syscall.SIGINT) }

// Stop ends the server and removes its files.
func (s *Server) Stop() {
	s.child.stop(syscall.SIGQUIT)
	_ = os.RemoveAll(s.dir) // a leftover in the temporary directory harms nobody
}

// StepClock sets the server's wall clock off by d from the host's. It needs
// Options.StepClock.
func (s *Server) StepClock(tb testing.TB, d time.Duration) {
	tb.Helper()
	text := fmt.Sprintf("%+.6f\n", d.Seconds())
	if err := os.WriteFile(filepath.Join(s.dir, "clock"), []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// child is the postmaster.
type child struct {
	pid  int
	done chan struct{}
}

// startChild starts cmd from a thread that lives as long as it does: the
// kernel delivers the parent-death signal when that thread ends, not when the
// process does.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.done)
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("pgtest: start the server: %w", err)
			return
		}
		c.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // how it ended is in its log
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// freeze stops the postmaster, and returns its children once it can start no more.
// The signal does not wait for that: it may be in the middle of a fork.
func (c *child) freeze() []int {
	_ = syscall.Kill(c.pid, syscall.SIGSTOP) // ended: nothing to stop
	for deadline := time.Now().Add(stopLimit); !standing(c.pid) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	return children(c.pid)
}

func (c *child) pause() {
	for _, pid := range c.freeze() {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
}

func (c *child) resume() {
	for _, pid := range children(c.pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	_ = syscall.Kill(c.pid, syscall.SIGCONT)
}

func (c *child) kill() {
	if c == nil || c.ended() {
		return
	}
	backends := c.freeze()
	_ = syscall.Kill(c.pid, syscall.SIGKILL)
	for _, pid := range backends {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-c.done
	// A new server refuses to start while a backend of the old one lives.
	for deadline := time.Now().Add(stopLimit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if !slices.ContainsFunc(backends, func(pid int) bool { return !gone(pid) }) {
			return
		}
	}
}

func (c *child) stop(signal syscall.Signal) {
	if c == nil || c.ended() {
		return
	}
	c.resume() // a stopped process answers no other signal
	_ = syscall.Kill(c.pid, signal)
	select {
	case <-c.done:
	case <-time.After(stopLimit):
		c.kill()
	}
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// binaries finds the directory of PostgreSQL's programs.
func binaries() (string, error) {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is valid
	slices.SortFunc(installed, func(a, b string) int { return version(b) - version(a) })
	for _, dir := range append(dirs, installed...) {
		if complete(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w: PostgreSQL's programs (initdb, postgres, psql); run: apt-get install -y postgresql", ErrMissing)
}

func version(bin string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(bin))) // not a number: last
	return n
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres", "psql"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func faketime() string {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the pattern is valid
			return found[0]
		}
	}
	return ""
}

// unprivileged returns whom to run as: PostgreSQL refuses root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("pgtest: PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// shared is the server of the test binary; see Main.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Main runs the tests and stops the shared server after them. It returns the
// exit code, for TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	if shared.server != nil {
		shared.server.Stop()
	}
	return code
}

var foreign atomic.Int64

// Database makes an empty database on the server that the tests of this binary
// share, and returns its URL, for a superuser.
func Database(tb testing.TB) string {
	tb.Helper()
	if existing := os.Getenv("TENURE_TEST_POSTGRES"); existing != "" {
		return databaseOn(tb, existing)
	}
	shared.once.Do(func() {
		shared.server, shared.err = New(Options{Settings: []string{"max_connections=400", "max_prepared_transactions=8"}})
	})
	if shared.err != nil {
		unavailable(tb, shared.err)
	}
	return shared.server.Database(tb)
}

func databaseOn(tb testing.TB, existing string) string {
	tb.Helper()
	bin, err := binaries()
	if err != nil {
		unavailable(tb, err)
	}
	u, err := url.Parse(existing)
	if err != nil {
		tb.Fatalf("pgtest: TENURE_TEST_POSTGRES: %v", err)
	}
	name := fmt.Sprintf("tenure_test_%d_%d", os.Getpid(), foreign.Add(1))
	if out, err := psql(bin, existing, "CREATE DATABASE "+name); err != nil {
		tb.Fatalf("pgtest: create database: %v\n%s", err, out)
	}
	tb.Cleanup(func() {
		if out, err := psql(bin, existing, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			tb.Logf("pgtest: drop database: %v\n%s", err, out)
		}
	})
	u.Path = "/" + name
	return u.String()
}
