package agent

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Deadline says until when this node may act. The agent rewrites it in one small
// file at each confirmed renewal, for those that supervise work and outlive the
// agent. Instants are CLOCK_BOOTTIME.
type Deadline struct {
	Boot  string      // id of the boot that the instants belong to
	Token fence.Token // of the node's term
	// Since is when the agent learnt that it held the term. Whoever obeys an
	// earlier deadline goes on under this one only if Since is not after it: then
	// there was no gap, in which the work may have been given to another.
	Since time.Duration
	Until time.Duration // the last instant at which the node may act
	// Margin is how long after Until, at least, the lease may pass to another.
	Margin time.Duration
	// Fenced: another incarnation has the node's name, and no later deadline comes.
	Fenced bool
}

// KillAt returns when what got SIGTERM at Until must be killed: after grace, and
// early enough that half of the margin is left.
func (d Deadline) KillAt(grace time.Duration) time.Duration {
	return d.Until + max(0, min(grace, d.Margin/2))
}

// Extends reports whether who obeys d may obey next instead.
func (d Deadline) Extends(next Deadline) bool {
	return next.Boot == d.Boot && !next.Fenced && next.Since <= d.Until && next.Until > d.Until
}

// ErrDeadline reports a deadline file that cannot be read. What was known before
// stays in force.
var ErrDeadline = errors.New("agent: deadline file cannot be read")

const deadlineForm = "tenure-deadline-1 boot=%-36s token=%020d since=%020d until=%020d margin=%020d fenced=%d "

// encode always gives the same number of bytes, so that a write in place leaves
// nothing of the one before. A reader that meets a write finds a wrong sum.
func (d Deadline) encode() []byte {
	boot, fenced := d.Boot, 0
	if boot == "" {
		boot = "-"
	}
	if d.Fenced {
		fenced = 1
	}
	line := fmt.Appendf(nil, deadlineForm, boot, int64(d.Token), int64(d.Since), int64(d.Until), int64(d.Margin), fenced)
	return fmt.Appendf(line, "sum=%08x\n", crc32.ChecksumIEEE(line))
}

// ReadDeadline reads what the agent wrote. It reads again if it met a write, and
// returns an error matching ErrDeadline if the file is missing or stays unreadable.
func ReadDeadline(path string) (Deadline, error) {
	var last error
	for range 5 {
		text, err := os.ReadFile(path)
		if err != nil {
			return Deadline{}, fmt.Errorf("%w: %w", ErrDeadline, err)
		}
		d, err := decodeDeadline(text)
		if err == nil {
			return d, nil
		}
		last = err
		<-time.After(200 * time.Microsecond) // a write of this size takes less
	}
	return Deadline{}, fmt.Errorf("%w: %q: %w", ErrDeadline, path, last)
}

func decodeDeadline(text []byte) (Deadline, error) {
	var (
		d                           Deadline
		token, since, until, margin int64
		fenced                      int
		sum                         uint32
	)
	at := bytes.LastIndex(text, []byte("sum="))
	if at < 0 {
		return d, errors.New("no sum")
	}
	if len(text)-at != len("sum=00000000\n") {
		return d, errors.New("cut short")
	}
	if _, err := fmt.Sscanf(string(text[at:]), "sum=%08x\n", &sum); err != nil || sum != crc32.ChecksumIEEE(text[:at]) {
		return d, errors.New("wrong sum")
	}
	if _, err := fmt.Sscanf(string(text[:at]), "tenure-deadline-1 boot=%s token=%d since=%d until=%d margin=%d fenced=%d ", &d.Boot, &token, &since, &until, &margin, &fenced); err != nil {
		return d, err
	}
	if d.Boot == "-" {
		d.Boot = ""
	}
	d.Token, d.Since, d.Until, d.Margin, d.Fenced = fence.Token(token), time.Duration(since), time.Duration(until), time.Duration(margin), fenced == 1
	return d, nil
}

// WriteDeadline rewrites the file in place. It is not synced: whoever reads it
// shares this host's memory of the file, and after a crash of the host it means
// nothing.
func WriteDeadline(path string, d Deadline) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(d.encode(), 0)
	return errors.Join(err, f.Close())
}
