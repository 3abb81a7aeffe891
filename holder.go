package tenure

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/store"
)

// newHolder makes the identity of this run of this process: host, process id
// and a value that was never used before. It is kept in memory alone, so that
// no two processes read the same one, and is made anew whenever a copy of this
// process may exist.
func newHolder(host string) string {
	if host == "" {
		host, _ = os.Hostname() // an unnamed host gets a name below
	}
	nonce := store.NewAttempt()
	return fmt.Sprintf("%s/%s-%s", cleanHost(host), strconv.Itoa(os.Getpid()), nonce.String()[:16])
}

// cleanHost makes any host name fit the rule for holders, before the slash.
func cleanHost(host string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '.', r == '-', r == '_', r == ':', r == '@', r == '+':
			return r
		}
		return '-'
	}, host)
	clean = strings.TrimLeft(clean, "._-:@+")
	if len(clean) > 120 {
		clean = clean[:120]
	}
	if clean == "" {
		return "host"
	}
	return clean
}
