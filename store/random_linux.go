//go:build linux && (amd64 || arm64)

package store

import (
	"crypto/rand"
	"runtime"
	"syscall"
	"unsafe"
)

// kernelRandom fills b by getrandom(2) itself. crypto/rand may answer from a
// state that the C library or the vDSO keeps in this process's memory.
func kernelRandom(b []byte) {
	number := uintptr(318) // getrandom on amd64
	if runtime.GOARCH == "arm64" {
		number = 278
	}
	for got := 0; got < len(b); {
		n, _, errno := syscall.Syscall(number, uintptr(unsafe.Pointer(&b[got])), uintptr(len(b)-got), 0)
		switch errno {
		case 0:
			got += int(n)
		case syscall.EINTR:
		default:
			_, _ = rand.Read(b) // never fails; a sandbox that forbids the call gets what there is
			return
		}
	}
}
