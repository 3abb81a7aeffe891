package tenure

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// forkMark tells whether this process is the one that made it. It is a page
// that the kernel hands out empty in a forked child (madvise(2),
// MADV_WIPEONFORK, Linux 4.14), so that asking costs one load and no system call.
type forkMark struct{ page *byte }

const madvWipeOnFork = 18

func newForkMark() *forkMark {
	page, err := syscall.Mmap(-1, 0, syscall.Getpagesize(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return &forkMark{}
	}
	if syscall.Madvise(page, madvWipeOnFork) != nil {
		_ = syscall.Munmap(page)
		return &forkMark{}
	}
	m := &forkMark{page: &page[0]}
	atomic.StoreUint32((*uint32)(unsafe.Pointer(m.page)), 1)
	runtime.AddCleanup(m, func(p []byte) { _ = syscall.Munmap(p) }, page)
	return m
}

// forked reports whether this process is a fork of the one that made the mark.
// It cannot tell on kernels without MADV_WIPEONFORK, and answers false.
func (m *forkMark) forked() bool {
	return m.page != nil && atomic.LoadUint32((*uint32)(unsafe.Pointer(m.page))) == 0
}
