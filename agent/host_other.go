//go:build !linux

package agent

// BootID returns "": boots of this system cannot be told apart.
func BootID() string { return "" }

func namespace() string { return "" }

func processStart(int) (ticks uint64, ok bool) { return 0, false }
