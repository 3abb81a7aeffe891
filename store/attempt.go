package store

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/tenurehq/tenure/internal/clock"
)

// Attempt identifies one send of one request. The zero Attempt means none.
type Attempt [16]byte

// NewAttempt makes an attempt for a request that is about to be sent. It mixes
// bytes that the kernel draws at the call with the three clocks and the process
// id: a generator that keeps state in this process would give the same value
// to two processes resumed from one memory image, and a freshly restored
// kernel may repeat itself. Call it for every send, also of a retry.
func NewAttempt() Attempt { return NewAttempts(1)[0] }

// NewAttempts makes n attempts, for the grants of one request, from one draw.
func NewAttempts(n int) []Attempt {
	var seed [32 + 5*8]byte
	kernelRandom(seed[:32])
	now := clock.Now()
	for i, v := range []uint64{uint64(now.Mono), uint64(now.Boot), uint64(now.Wall), uint64(os.Getpid())} {
		binary.LittleEndian.PutUint64(seed[40+8*i:], v)
	}
	list := make([]Attempt, n)
	for i := range list {
		binary.LittleEndian.PutUint64(seed[32:], uint64(i))
		sum := sha256.Sum256(seed[:])
		list[i] = Attempt(sum[:16])
	}
	return list
}

// IsZero reports whether a is the zero Attempt.
func (a Attempt) IsZero() bool { return a == Attempt{} }

// String returns a in hexadecimal.
func (a Attempt) String() string { return hex.EncodeToString(a[:]) }

// MarshalText returns a in hexadecimal.
func (a Attempt) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (a *Attempt) UnmarshalText(b []byte) error {
	if len(b) != 2*len(a) {
		return fmt.Errorf("store: attempt %q: want %d hexadecimal digits", b, 2*len(a))
	}
	if _, err := hex.Decode(a[:], b); err != nil {
		return fmt.Errorf("store: attempt %q: %w", b, err)
	}
	return nil
}
