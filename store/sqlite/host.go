package sqlite

import (
	"errors"
	"strings"
	"time"
)

// Host is what the store knows of the machine it runs on.
type Host struct {
	// ID names the machine across reboots. Empty if unknown: then a file copied
	// from another machine cannot be told.
	ID string
	// Domain names the validity of Boot's readings: two readings can be compared
	// if their domains are equal. It names the boot of the kernel, and after a
	// "+" the offset of the time namespace if that is not zero. At most 64 bytes;
	// it is kept in each lease.
	Domain string
	// Boot reads the clock by which expiry is judged. It never goes back within
	// a domain and counts suspend.
	Boot func() time.Duration
	// Wall reads the clock that is shown. The store reads it once, in New.
	Wall func() time.Time
}

// complete fills the empty fields from the system.
func (h Host) complete() (Host, error) {
	if h.ID == "" || h.Domain == "" || h.Boot == nil || h.Wall == nil {
		this, err := ThisHost()
		if err != nil {
			return Host{}, err
		}
		if h.ID == "" {
			h.ID = this.ID
		}
		if h.Domain == "" {
			h.Domain = this.Domain
		}
		if h.Boot == nil {
			h.Boot = this.Boot
		}
		if h.Wall == nil {
			h.Wall = this.Wall
		}
	}
	if len(h.Domain) > 64 {
		return Host{}, errors.New("sqlite: host domain longer than 64 bytes")
	}
	return h, nil
}

// sameBoot reports whether two domains are of one boot of one kernel, which
// proves one machine whatever its containers think of the machine id.
func sameBoot(a, b string) bool {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	return a == b && a != wallDomain
}

// wallDomain is the domain where the wall clock stands in for a boot clock.
const wallDomain = "wall"
