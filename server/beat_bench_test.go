package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/api"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fleet"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/memory"
)

// BenchmarkBeat measures B7: the CPU of the server for a beat with a renewal, from
// the socket to the socket, on kept-alive connections. Leases are in a store in
// memory, so the share of a database's commit is not in it.
//
// "plain" is what the same harness costs on the same machine with net/http,
// encoding/json and a map alone, and an empty answer.
func BenchmarkBeat(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) { benchmarkBeats(b, size, false) })
		b.Run(fmt.Sprintf("plain,body=%d", size), func(b *testing.B) { benchmarkBeats(b, size, true) })
	}
}

// plainHandler decodes beats and keeps them.
func plainHandler() http.Handler {
	var mu sync.Mutex
	last := map[string]*api.Beat{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in api.Beats
		if r.URL.Path == beatPath {
			in.Beats = make([]api.Beat, 1)
			_ = json.NewDecoder(r.Body).Decode(&in.Beats[0])
		} else {
			_ = json.NewDecoder(r.Body).Decode(&in)
		}
		mu.Lock()
		for i := range in.Beats {
			last[in.Beats[i].Node] = &in.Beats[i]
		}
		mu.Unlock()
		_, _ = w.Write([]byte("{}"))
	})
}

func benchmarkBeats(b *testing.B, size int, plain bool) {
	const nodes = 800
	_, reg := openDatabase(b)
	st := memory.New()
	s, err := New(st, reg, Config{})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	web := s.HTTPServer(s.Handler(HTTPConfig{}))
	if plain {
		web.Handler = plainHandler()
	}
	var running sync.WaitGroup
	running.Go(func() { _ = web.Serve(ln) })
	running.Go(func() { _ = s.Run(ctx) })
	b.Cleanup(func() {
		web.Close()
		cancel()
		running.Wait()
	})
	eventually(b, "ready", func() bool { return s.Ready() == nil })

	job := senderJob{Addr: ln.Addr().String(), Beats: b.N}
	for i := range nodes / size {
		job.Requests = append(job.Requests, benchRequest(b, s, st, i*size, size))
	}
	sender := startSender(b, job)
	b.ReportAllocs()
	b.ResetTimer()
	began := cpu()
	if err := sender.run(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64((cpu()-began).Nanoseconds())/1000/float64(b.N*size), "cpu-µs/beat")
	b.ReportMetric(0, "ns/op") // of waiting
}

// cpu is what this process has used so far.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// senderJob is what the sending process is told: requests, one for each
// connection, which it repeats with other numbers until so many were answered.
type senderJob struct {
	Addr     string
	Requests [][]byte
	Beats    int
}

// senderProcess sends from a process of its own, whose CPU is not the server's.
type senderProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func startSender(b *testing.B, job senderJob) *senderProcess {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestBenchSender$", "-test.count=1")
	cmd.Env = append(os.Environ(), "TENURE_BENCH_SENDER=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	if err := json.NewEncoder(in).Encode(job); err != nil {
		b.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
		b.Fatalf("the sender says %q: %v", line, err)
	}
	return &senderProcess{cmd, in}
}

// run lets the sender send, and waits for its end.
func (p *senderProcess) run() error {
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		return err
	}
	return p.cmd.Wait()
}

// TestBenchSender is the sending process of BenchmarkBeat.
func TestBenchSender(t *testing.T) {
	if os.Getenv("TENURE_BENCH_SENDER") == "" {
		t.Skip("this is for BenchmarkBeat")
	}
	stdin := bufio.NewReader(os.Stdin)
	text, err := stdin.ReadBytes('\n')
	var job senderJob
	if err := errors.Join(err, json.Unmarshal(text, &job)); err != nil {
		t.Fatal(err)
	}
	senders := make([]*sender, len(job.Requests))
	for i, request := range job.Requests {
		senders[i] = newSender(request)
		if senders[i].conn, err = net.Dial("tcp", job.Addr); err != nil {
			t.Fatal(err)
		}
		defer senders[i].conn.Close()
		senders[i].answers = bufio.NewReaderSize(senders[i].conn, 64<<10)
	}
	fmt.Println("connected")
	if _, err := stdin.ReadBytes('\n'); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i, n := range senders {
		rounds := job.Beats / len(senders)
		if i < job.Beats%len(senders) {
			rounds++
		}
		all.Go(func() {
			for range rounds {
				if err := n.round(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// sender sends the beats of some nodes in one body, as bytes that are patched.
type sender struct {
	conn    net.Conn
	answers *bufio.Reader
	request []byte
	beats   []patch
	seq     uint64
}

// patch says where in a request the parts of a beat are that change.
type patch struct{ seq, attempt, known int }

const firstSeq = 1_000_000_000 // of as many digits as the later ones

// benchRequest makes nodes known to the server, and returns the request with their
// next beats.
func benchRequest(b *testing.B, s *Server, st store.Store, first, size int) []byte {
	var beats []api.Beat
	for i := first; i < first+size; i++ {
		id, attempt := fmt.Sprintf("node-%05d", i), store.NewAttempt()
		rec, err := st.Acquire(b.Context(), store.Request{Name: fleet.LeaseName(id), Holder: "host-12345/4711/b1946ac9", TTL: time.Minute, Attempt: attempt})
		if err != nil {
			b.Fatal(err)
		}
		beat := benchBeat(id, rec.Token, attempt)
		joining := beat
		joining.Seq, joining.Renew = 1, nil
		joining.Facts = &fleet.Facts{Address: "10.1.2.3:4000", Labels: map[string]string{"zone": "a", "rack": "r7"}, Capacity: fleet.Resources{"memory_mb": 64000, "cpu_milli": 16000}, Readiness: fleet.Readiness{Ready: true}}
		if reply, err := s.Beat(b.Context(), &joining); err != nil || reply.Code != "" {
			b.Fatal(reply, err)
		}
		beat.Orders = s.in.find(id).row.Orders
		beats = append(beats, beat)
	}
	var body []byte
	path := beatPath
	if size == 1 {
		body, _ = json.Marshal(beats[0])
	} else {
		body, _ = json.Marshal(api.Beats{Beats: beats})
		path = beatsPath
	}
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: tenure\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

func newSender(request []byte) *sender {
	n := &sender{seq: firstSeq, request: request}
	for at := 0; ; {
		i := bytes.Index(n.request[at:], []byte(`"seq":`))
		if i < 0 {
			break
		}
		p := patch{seq: at + i + len(`"seq":`)}
		p.attempt = p.seq + bytes.Index(n.request[p.seq:], []byte(`"attempt":"`)) + len(`"attempt":"`)
		p.known = p.attempt + bytes.Index(n.request[p.attempt:], []byte(`"known":["`)) + len(`"known":["`)
		n.beats = append(n.beats, p)
		at = p.known
	}
	return n
}

func benchBeat(id string, token fence.Token, known store.Attempt) api.Beat {
	return api.Beat{
		Node: id, Incarnation: "b1946ac92492d2347c6235b4d2611184", Seq: firstSeq, FactsVersion: 1, SentAt: time.Now().UTC(),
		Renew: &api.Renewal{Token: token, TTLMS: 60_000, Attempt: store.NewAttempt(), Known: []store.Attempt{known}},
	}
}

// round sends the next beats and reads the answer.
func (n *sender) round() error {
	if n.seq > firstSeq {
		for _, p := range n.beats {
			copy(n.request[p.known:], n.request[p.attempt:p.attempt+32])
			var attempt [16]byte
			copy(attempt[:], strconv.AppendUint(nil, n.seq, 10))
			hex.Encode(n.request[p.attempt:], attempt[:])
			strconv.AppendUint(n.request[:p.seq], n.seq, 10)
		}
	}
	n.seq++
	if _, err := n.conn.Write(n.request); err != nil {
		return err
	}
	length := -1
	for {
		line, err := n.answers.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			break
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(rest)))
		}
	}
	for length > 0 {
		part, err := n.answers.Peek(min(length, 32<<10))
		if err != nil {
			return err
		}
		if bytes.Contains(part, []byte(`"code":`)) {
			all, _ := io.ReadAll(io.LimitReader(n.answers, int64(length)))
			return fmt.Errorf("refused: %.500s", all)
		}
		_, _ = n.answers.Discard(len(part))
		length -= len(part)
	}
	return nil
}
