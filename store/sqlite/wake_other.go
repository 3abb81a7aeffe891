//go:build !linux

package sqlite

import (
	"errors"
	"io"
)

const canWatch = false

func touch(string) {}

func listen(string, string) (io.ReadCloser, error) {
	return nil, errors.New("watching needs inotify, which only Linux has")
}

func gone([]byte) bool { return false }
