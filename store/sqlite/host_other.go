//go:build !linux

package sqlite

import "time"

const (
	clockGranularity = time.Microsecond
	clockCaution     = "a forward step of the wall clock by more than the margin ends terms early; after a backward one they are judged by watching for a TTL"
)

// ThisHost returns the wall clock as the clock of this host; see the package
// comment. It knows no machine id here: set Config.Host.ID to have copies told.
func ThisHost() (Host, error) {
	return Host{
		Domain: wallDomain,
		Boot:   func() time.Duration { return time.Duration(time.Now().UnixNano()) },
		Wall:   time.Now,
	}, nil
}

// FileSystem knows no file systems on this system: the caller must not put the
// file on a network drive.
func FileSystem(string) (name string, refused bool) { return "", false }

func fileIdentity(string) string { return "" }

func otherNames(string) string { return "" }

func freeBytes(string) (int64, bool) { return 0, false }

func lockHolders(string) []string { return nil }
