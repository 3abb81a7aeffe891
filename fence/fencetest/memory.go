package fencetest

import (
	"context"
	"sync"

	"github.com/tenurehq/tenure/fence"
)

// Memory is fence.Marks in this process, for tests. It forgets with the process,
// so it guards nothing that stays.
type Memory struct {
	mu    sync.Mutex
	marks map[string]fence.Token
	slots map[[2]string]fence.Token
}

var _ fence.Marks = (*Memory)(nil)

// NewMemory returns Memory without marks.
func NewMemory() *Memory {
	return &Memory{marks: map[string]fence.Token{}, slots: map[[2]string]fence.Token{}}
}

// Raise is that of fence.Marks.
func (m *Memory) Raise(ctx context.Context, resource string, token fence.Token) (fence.Token, error) {
	if err := check(ctx, token, resource); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.raise(resource, token)
}

// raise is called with mu held.
func (m *Memory) raise(resource string, token fence.Token) (fence.Token, error) {
	if mark := m.marks[resource]; token < mark {
		return mark, &fence.StaleError{Resource: resource, Token: token, Current: mark}
	}
	m.marks[resource] = token
	return token, nil
}

// Once is that of fence.Marks.
func (m *Memory) Once(ctx context.Context, resource, slot string, token fence.Token) (first bool, err error) {
	if err := check(ctx, token, resource, slot); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{resource, slot}
	by := m.slots[key]
	_, err = m.raise(resource, token)
	switch {
	case by == token:
		return false, nil
	case err != nil:
		return false, err
	case by != 0:
		return false, &fence.SlotError{Resource: resource, Slot: slot, Token: token, By: by}
	}
	m.slots[key] = token
	return true, nil
}

func check(ctx context.Context, token fence.Token, names ...string) error {
	if err := fence.CheckMark(token, names...); err != nil {
		return err
	}
	return ctx.Err()
}
