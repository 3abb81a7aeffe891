//go:build !linux

package tenure

func forgottenMark() *forkMark { return &forkMark{pid: -1} }
