package sqlite

import (
	"fmt"
	"sync"

	"github.com/tenurehq/tenure/store"
)

// identity knows which file the store was made on. A file that was removed or
// replaced is still open here, and says nothing of what others hold who open its
// path now.
type identity struct {
	path string

	mu    sync.Mutex
	inode string // "" until there is a file
	gone  bool   // another file stood at the path once, or none
}

// lost reports whether the file at the path is another one than the store's.
func (f *identity) lost() bool {
	now := fileIdentity(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inode == "" {
		f.inode = now
	}
	f.gone = f.gone || now != f.inode
	return f.gone
}

const goneText = "the database file was removed or replaced while it was in use"

var (
	// errGone ends the terms that were held by the file: whoever opens the path
	// now may start others.
	errGone = fmt.Errorf("%w: %s", store.ErrMissing, goneText)
	// errGoneRead answers a read, which must not say what is not held any more.
	errGoneRead = fmt.Errorf("%w: %s", store.ErrUnavailable, goneText)
)
