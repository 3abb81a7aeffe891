//go:build linux

package conformance_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/internal/pgtest"
	"github.com/tenurehq/tenure/store/storetest"
)

// Times of the fleets under test. TENURE_FLEET_SCALE makes all of them that many
// times longer, for machines that are busy with other things.
var (
	fleetScale    = fleetNumber("TENURE_FLEET_SCALE", 1)
	fleetInterval = times(fleetScale, 300*time.Millisecond)
	fleetTTL      = times(fleetScale, 3*time.Second)
	fleetMargin   = fleetTTL / 5
	fleetSoon     = times(fleetScale, 30*time.Second) // for what must happen, on a busy machine
)

func times(n int, d time.Duration) time.Duration { return time.Duration(int64(n) * d.Nanoseconds()) }

// fleetNumber reads a setting of the long forms of these tests.
func fleetNumber(name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		panic(fmt.Sprintf("%s is %q; want a number", name, text))
	}
	return n
}

// builtTenure is the program under test, built once for all tests of this binary.
var builtTenure struct {
	once sync.Once
	dir  string
	err  error
}

// tenureBinary returns the path of the program.
func tenureBinary(t testing.TB) string {
	t.Helper()
	b := &builtTenure
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "tenure-fleet-"); b.err != nil {
			return
		}
		build := exec.Command("go", "build", "-o", filepath.Join(b.dir, "tenure"), ".")
		build.Dir = filepath.Join("..", "cmd", "tenure")
		if out, err := build.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, "tenure")
}

// dropTenureBinary removes what tenureBinary has built.
func dropTenureBinary() { _ = os.RemoveAll(builtTenure.dir) }

// fleetChild is a process that dies with this one.
type fleetChild struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{} // closed when it has
}

// startFleetChild starts a program, without settings of the user's own fleet.
func startFleetChild(t testing.TB, log string, env []string, path string, args ...string) *fleetChild {
	t.Helper()
	file, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = file, file
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TENURE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c := &fleetChild{cmd: cmd, log: log, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // whose end would send the signal of a parent's death
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		close(c.ended)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *fleetChild) pid() int                { return c.cmd.Process.Pid }
func (c *fleetChild) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) } // one that has ended needs none

func (c *fleetChild) kill() {
	c.signal(syscall.SIGKILL)
	<-c.ended
}

func (c *fleetChild) alive() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// fleetServer is one replica.
type fleetServer struct {
	*fleetChild
	name, addr string
}

// fleetHost is a node, and all that runs on it.
type fleetHost struct {
	*fleetChild
	node, dir string
	program   string
	proxies   []*storetest.Proxy // in front of each replica
}

// fleetBed is a control plane over a database of its own, hosts, and work.
type fleetBed struct {
	t       *testing.T
	dir     string
	store   string // of the servers
	guard   guardTable
	db      *sql.DB // with the guarded table
	fleetDB *sql.DB // of the servers
	servers []*fleetServer
	hosts   []*fleetHost
	client  *api.Client
	flags   []string             // of the servers, beyond the usual
	files   map[string]*workFile // by item; read by the test's goroutine alone
	ending  sync.Once
}

// fleetBackends are the databases of the tests.
var fleetBackends = []string{"sqlite", "postgres"}

// newFleetBed starts replicas and hosts, and waits until the hosts are eligible.
// All processes end with the test.
func newFleetBed(t *testing.T, backend string, replicas, hosts int, flags ...string) *fleetBed {
	t.Helper()
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		t.Fatal(err)
	}
	b := &fleetBed{t: t, dir: dir, flags: flags, files: map[string]*workFile{}}
	t.Cleanup(b.end)
	if backend == "postgres" {
		b.store = pgtest.Database(t)
		b.guard = guardTable{"pgx", b.store}
	} else {
		file := filepath.Join(dir, "tenure.db")
		// Work that is stopped in the middle of a transaction keeps its file from all.
		b.store, b.guard = "sqlite:"+file, sqliteGuard(filepath.Join(dir, "guard.db"))
	}
	if out, err := exec.Command(tenureBinary(t), "migrate", "--store", b.store).CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v: %s", err, out)
	}
	if b.db, err = b.guard.open(); err == nil {
		err = b.guard.create(t.Context(), b.db)
	}
	if err == nil {
		b.fleetDB, err = b.openFleetDB()
	}
	if err == nil {
		err = os.Mkdir(b.logs(), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for i := range replicas {
		s := &fleetServer{name: "replica-" + strconv.Itoa(i+1)}
		b.servers = append(b.servers, s)
		b.serve(s)
		urls = append(urls, "tenure://"+s.addr)
	}
	if b.client, err = api.NewClient(api.Config{Servers: urls}); err != nil {
		t.Fatal(err)
	}
	for i := range hosts {
		b.join("host-" + string(rune('a'+i)))
	}
	for _, h := range b.hosts {
		b.eligible(h.node)
	}
	return b
}

func (b *fleetBed) openFleetDB() (*sql.DB, error) {
	if file, ok := strings.CutPrefix(b.store, "sqlite:"); ok {
		return sqliteGuard(file).open()
	}
	return b.guard.open()
}

func (b *fleetBed) logs() string { return filepath.Join(b.dir, "work") }

// serve starts a replica, where it was before if it ran before.
func (b *fleetBed) serve(s *fleetServer) {
	b.t.Helper()
	log := filepath.Join(b.dir, s.name+".log")
	if err := os.RemoveAll(log); err != nil {
		b.t.Fatal(err)
	}
	args := []string{
		"server", "--store", b.store, "--listen", cmp.Or(s.addr, "127.0.0.1:0"), "--name", s.name,
		"--interval", fleetInterval.String(), "--node-ttl", fleetTTL.String(), "--reconcile", (fleetInterval / 2).String(), "--reconciler-ttl", (fleetTTL / 3).String(),
		"--refresh", (fleetInterval / 2).String(), "--window", "5ms", "--flap-times", "8", "--flap-window", "1s", "--flap-quiet", "1s",
	}
	s.fleetChild = startFleetChild(b.t, log, nil, tenureBinary(b.t), append(args, b.flags...)...)
	b.eventually(s.name+" listens and is ready", func() bool {
		if !s.alive() {
			text, _ := os.ReadFile(log)
			b.t.Fatalf("%s ended: %s", s.name, text)
		}
		text, _ := os.ReadFile(log)
		for line := range bytes.Lines(text) {
			if rest, ok := bytes.CutPrefix(line, []byte("server:")); ok && bytes.HasSuffix(line, []byte("\n")) {
				s.addr = strings.TrimPrefix(strings.TrimSpace(string(rest)), "tenure://")
			}
		}
		if s.addr == "" {
			return false
		}
		c, err := net.Dial("tcp", s.addr)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
}

// join adds a host whose agent reaches each replica through a proxy.
func (b *fleetBed) join(node string) *fleetHost {
	b.t.Helper()
	h := &fleetHost{node: node, dir: filepath.Join(b.dir, node), program: tenureBinary(b.t)}
	for _, s := range b.servers {
		p, err := storetest.NewProxy("tcp", s.addr)
		if err != nil {
			b.t.Fatal(err)
		}
		h.proxies = append(h.proxies, p)
	}
	b.hosts = append(b.hosts, h)
	b.start(h)
	return h
}

// start starts the agent of a host.
func (b *fleetBed) start(h *fleetHost) {
	b.t.Helper()
	h.fleetChild = startFleetChild(b.t, filepath.Join(b.dir, h.node+".log"), nil, h.program,
		"agent", "--server", h.servers(), "--node", h.node, "--state-dir", h.dir, "--capacity", "slots=100,memory_mb=1024,cpu_milli=1000")
}

func (h *fleetHost) servers() string {
	var addrs []string
	for _, p := range h.proxies {
		addrs = append(addrs, p.Addr())
	}
	return "tenure://" + strings.Join(addrs, ",")
}

// each lets do change every proxy of the host.
func (h *fleetHost) each(do func(*storetest.Proxy)) {
	for _, p := range h.proxies {
		do(p)
	}
}

// minded is who runs an instance of a work item, as its minder has noted it.
type minded struct {
	Minder, Command struct {
		PID   int    `json:"pid"`
		Start uint64 `json:"start"`
	}
}

// minded returns who runs work on this host.
func (h *fleetHost) minded() (all []minded) {
	files, _ := filepath.Glob(filepath.Join(h.dir, "work", "*", "process.json"))
	for _, file := range files {
		var m minded
		if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &m) == nil {
			all = append(all, m)
		}
	}
	return all
}

// processStart returns the start time of a process in ticks since boot, 0 if it is
// gone or dead.
func processStart(pid int) uint64 {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	start, _ := strconv.ParseUint(fields[19], 10, 64)
	return start
}

func lives(pid int) bool { return processStart(pid) != 0 }

// stopped reports whether every thread of a process stands still.
func stopped(pid int) bool {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if state := bytes.TrimSpace(line[bytes.LastIndexByte(line, ')')+1:]); len(state) > 0 && state[0] != 'T' {
			return false
		}
	}
	return len(files) > 0
}

// end ends every process of the bed, by pid.
func (b *fleetBed) end() { b.ending.Do(b.endAll) }

func (b *fleetBed) endAll() {
	for _, h := range b.hosts {
		if h.fleetChild != nil {
			h.kill()
		}
	}
	for _, s := range b.servers {
		if s.fleetChild != nil {
			s.kill()
		}
	}
	for _, h := range b.hosts {
		for _, m := range h.minded() {
			for _, p := range []struct {
				PID   int    `json:"pid"`
				Start uint64 `json:"start"`
			}{m.Minder, m.Command} {
				if p.PID > 0 && p.Start != 0 && processStart(p.PID) == p.Start {
					_ = syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
		}
		h.each(func(p *storetest.Proxy) { _ = p.Close() })
	}
	if b.client != nil {
		_ = b.client.Close()
	}
	for _, db := range []*sql.DB{b.db, b.fleetDB} {
		if db != nil {
			_ = db.Close()
		}
	}
	if b.t.Failed() {
		b.t.Logf("the logs are in %s", b.dir)
		return
	}
	_ = os.RemoveAll(b.dir)
}

// eventually polls until done, for at most fleetSoon.
func (b *fleetBed) eventually(what string, done func() bool) {
	b.t.Helper()
	b.eventuallyWithin(fleetSoon, what, done)
}

func (b *fleetBed) eventuallyWithin(bound time.Duration, what string, done func() bool) {
	b.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(bound); !done(); {
		if time.Now().After(limit) {
			b.t.Fatalf("still not so after %s: %s", bound, what)
		}
		select {
		case <-tick.C:
		case <-b.t.Context().Done():
			b.t.Fatal(context.Cause(b.t.Context()))
		}
	}
}

// eligible waits until a node may get work.
func (b *fleetBed) eligible(node string) {
	b.t.Helper()
	b.eventually(node+" is eligible", func() bool {
		e, err := b.client.Eligible(b.t.Context(), node)
		return err == nil && e.Eligible
	})
}

// submit places an item whose command is the work of the tests.
func (b *fleetBed) submit(spec fleet.Spec, unfenced bool) *api.Work {
	b.t.Helper()
	config, err := json.Marshal(fleetWorkConfig{Guard: b.guard, Logs: b.logs(), Unfenced: unfenced, Beside: os.Getpid()})
	if err != nil {
		b.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	spec.Command = []string{"/usr/bin/env", envRole + "=fleet-work", envConfig + "=" + string(config), self}
	var w *api.Work
	b.eventually("room for "+spec.ID, func() bool {
		w, err = b.client.Submit(b.t.Context(), api.SubmitRequest{Spec: spec, Actor: "test"})
		var refused *api.Error
		if errors.As(err, &refused) && refused.Code != string(fleet.CodeNoCapacity) {
			b.t.Fatalf("submit %s: %v", spec.ID, err)
		}
		return err == nil
	})
	b.eventually(spec.ID+" acts and writes on "+w.Owner, func() bool {
		l := b.log(spec.ID)
		return len(l.pids(w.Token)) == 1 && l.made(w.Token) > 0
	})
	return w
}

// log returns what the copies of an item have noted so far.
func (b *fleetBed) log(item string) *workLog {
	b.t.Helper()
	f := b.files[item]
	if f == nil {
		f = &workFile{path: filepath.Join(b.logs(), item+".log")}
		b.files[item] = f
	}
	l, err := f.update()
	if err != nil {
		b.t.Fatal(err)
	}
	return l
}

func (b *fleetBed) host(node string) *fleetHost {
	for _, h := range b.hosts {
		if h.node == node {
			return h
		}
	}
	b.t.Fatalf("no host %q", node)
	return nil
}

func (b *fleetBed) work(id string) *api.Work {
	b.t.Helper()
	var w *api.Work
	b.eventually("an answer about "+id, func() (ok bool) {
		var err error
		w, err = b.client.Work(b.t.Context(), id)
		return err == nil
	})
	return w
}

func (b *fleetBed) node(id string) *api.Node {
	b.t.Helper()
	var n *api.Node
	b.eventually("an answer about "+id, func() (ok bool) {
		var err error
		n, err = b.client.Node(b.t.Context(), id)
		return err == nil
	})
	return n
}

// takeovers returns the evidence of each takeover of an item.
func (b *fleetBed) takeovers(id string) (all []fleet.Evidence) {
	b.t.Helper()
	events, err := b.client.Events(b.t.Context(), api.EventQuery{Work: id, Kind: fleet.EventTakeover})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range events.Events {
		var ev fleet.Evidence
		text, err := json.Marshal(e.Fields)
		if err == nil {
			err = json.Unmarshal(text, &ev)
		}
		if err != nil {
			b.t.Fatal(err)
		}
		all = append(all, ev)
	}
	return all
}

// reconciler returns the replica that reconciles.
func (b *fleetBed) reconciler() (s *fleetServer) {
	b.t.Helper()
	b.eventually("a replica reconciles", func() bool {
		rec, err := api.NewStore(b.client).Get(b.t.Context(), "tenure/reconciler")
		if err != nil {
			return false
		}
		for _, s = range b.servers {
			if s.alive() && strings.Contains(rec.Holder, "/"+strconv.Itoa(s.pid())+"-") {
				return true
			}
		}
		return false
	})
	return s
}

// setting returns a setting of the servers, or what follows from them.
func (b *fleetBed) setting(name string) string {
	b.t.Helper()
	cfg, err := b.client.Config(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, s := range append(cfg.Settings, cfg.Derived...) {
		if s.Name == name {
			return s.Value
		}
	}
	b.t.Fatalf("no setting %q among %+v", name, cfg)
	return ""
}

// guarded checks all that an item's copies have done.
func (b *fleetBed) guarded(id string, mayOverlap bool) (overlaps, stale []string) {
	b.t.Helper()
	l := b.log(id)
	if !mayOverlap {
		overlaps = l.overlaps()
	}
	made, err := b.guard.made(b.t.Context(), b.db, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return overlaps, append(l.stale(), outOfOrder(made)...)
}

// lateWrite is a write as an earlier owner sends it.
func (b *fleetBed) lateWrite(id string, token fence.Token) (rows int) {
	b.t.Helper()
	b.eventually("a write with token "+token.String(), func() (ok bool) {
		var err error
		rows, err = b.guard.write(b.t.Context(), b.db, id, token, true)
		return err == nil
	})
	return rows
}
