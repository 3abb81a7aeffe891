package loadgen

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// order is a line from the conductor to a part. The first says what it is to be.
type order struct {
	Serve *replicaConfig `json:"serve,omitempty"`
	Nodes *nodesConfig   `json:"nodes,omitempty"`

	Do   string `json:"do,omitempty"`
	N    int    `json:"n,omitempty"`    // kill: how many
	File string `json:"file,omitempty"` // memory, profile
}

// What orders ask for.
const (
	doTally   = "tally"   // nodes: answer with what was counted since the last time
	doKill    = "kill"    // nodes: kill n of them, each at a random instant of the next interval
	doMemory  = "memory"  // replica: answer with the heap after a collection, and write its profile to file if there is one
	doProfile = "profile" // replica: write a CPU profile to file from now on; without one, to none
)

// event is a line from a part.
type event struct {
	Answer    bool       `json:"answer,omitempty"` // to the last order
	Listening string     `json:"listening,omitempty"`
	Joined    int        `json:"joined,omitempty"`
	Liveness  *sighting  `json:"liveness,omitempty"`
	Killed    *sighting  `json:"killed,omitempty"`
	Tally     *tally     `json:"tally,omitempty"`
	Heap      *heapState `json:"heap,omitempty"`
	Trouble   string     `json:"trouble,omitempty"`
}

// sighting is what became of a node, and when by this machine's wall clock.
type sighting struct {
	Node string    `json:"node"`
	Is   string    `json:"is,omitempty"`
	At   time.Time `json:"at"`
}

// heapState is what a replica keeps.
type heapState struct {
	Live       uint64 `json:"live"` // bytes, after a collection
	Stacks     uint64 `json:"stacks"`
	Goroutines int    `json:"goroutines"`
}

// speaker writes events, each as one line. It is safe for concurrent use.
type speaker struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func newSpeaker(w io.Writer) *speaker { return &speaker{enc: json.NewEncoder(w)} }

// say tells the conductor. If it has gone, the end of the input tells the part.
func (s *speaker) say(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.enc.Encode(e)
}

// Play is the main function of a part: it reads its orders from in until that
// ends, and answers on out. Open opens the database for a replica.
func Play(ctx context.Context, in io.Reader, out io.Writer, open OpenFunc) error {
	orders := json.NewDecoder(bufio.NewReader(in))
	var first order
	if err := orders.Decode(&first); err != nil {
		return fmt.Errorf("the first order: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rest := make(chan order)
	go func() {
		defer cancel()
		for {
			var o order
			if orders.Decode(&o) != nil {
				return
			}
			select {
			case rest <- o:
			case <-ctx.Done():
				return
			}
		}
	}()
	switch {
	case first.Serve != nil:
		return serve(ctx, *first.Serve, open, rest, newSpeaker(out))
	case first.Nodes != nil:
		return simulate(ctx, *first.Nodes, rest, newSpeaker(out))
	}
	return errors.New("the first order names no part")
}

// part is a process that the conductor started.
type part struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	orders  *json.Encoder
	answers chan event
	gone    chan struct{} // closed when the process has ended
	err     error         // how, once gone
}

// startPart starts cmd and gives it its first order. Events that are no answers
// go to on, from one goroutine.
func startPart(cmd *exec.Cmd, first order, on func(event)) (*part, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &part{cmd: cmd, in: in, orders: json.NewEncoder(in), answers: make(chan event, 1), gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		events := json.NewDecoder(bufio.NewReader(out))
		for {
			var e event
			if events.Decode(&e) != nil {
				break
			}
			if e.Answer {
				p.answers <- e
			} else {
				on(e)
			}
		}
		p.err = cmd.Wait()
	}()
	return p, p.orders.Encode(first)
}

// ask gives an order and waits for the answer.
func (p *part) ask(ctx context.Context, o order) (event, error) {
	if err := p.orders.Encode(o); err != nil {
		return event{}, err
	}
	select {
	case e := <-p.answers:
		return e, nil
	case <-p.gone:
		return event{}, fmt.Errorf("the process ended: %w", p.err)
	case <-ctx.Done():
		return event{}, context.Cause(ctx)
	}
}

// end lets the part end in order, and kills it if it does not.
func (p *part) end() {
	_ = p.in.Close()
	select {
	case <-p.gone:
	case <-time.After(10 * time.Second):
		p.kill()
	}
}

// kill ends the part with SIGKILL.
func (p *part) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}
