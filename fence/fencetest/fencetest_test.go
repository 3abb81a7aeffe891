package fencetest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	fencetest.Run(t, func(*testing.T) fencetest.Harness { return fencetest.Harness{Marks: fencetest.NewMemory()} })
}

// broken are mistakes that implementations make, by name, each over Memory.
var broken = map[string]func(m *fencetest.Memory) fence.Marks{
	"accepts everything":  func(m *fencetest.Memory) fence.Marks { return &lax{Memory: m} },
	"compares as float":   func(m *fencetest.Memory) fence.Marks { return &float{Memory: m, marks: map[string]float64{}} },
	"compares as text":    func(m *fencetest.Memory) fence.Marks { return &text{Memory: m, marks: map[string]string{}} },
	"refuses an equal":    func(m *fencetest.Memory) fence.Marks { return &strict{m} },
	"one mark for all":    func(m *fencetest.Memory) fence.Marks { return &single{m} },
	"once moves no mark":  func(m *fencetest.Memory) fence.Marks { return &still{m, fencetest.NewMemory()} },
	"once per token":      func(m *fencetest.Memory) fence.Marks { return &perToken{m} },
	"once is always true": func(m *fencetest.Memory) fence.Marks { return &always{m} },
	"looks, then writes":  func(m *fencetest.Memory) fence.Marks { return &racy{Memory: m, slots: map[string]bool{}} },
}

type lax struct{ *fencetest.Memory }

func (b *lax) Raise(_ context.Context, resource string, token fence.Token) (fence.Token, error) {
	return token, fence.CheckMark(token, resource)
}

type float struct {
	*fencetest.Memory
	mu    sync.Mutex
	marks map[string]float64
}

func (b *float) Raise(_ context.Context, resource string, token fence.Token) (fence.Token, error) {
	if err := fence.CheckMark(token, resource); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if mark := b.marks[resource]; float64(token) < mark {
		return fence.Token(mark), &fence.StaleError{Resource: resource, Token: token, Current: fence.Token(mark)}
	}
	b.marks[resource] = float64(token)
	return token, nil
}

type text struct {
	*fencetest.Memory
	mu    sync.Mutex
	marks map[string]string
}

func (b *text) Raise(_ context.Context, resource string, token fence.Token) (fence.Token, error) {
	if err := fence.CheckMark(token, resource); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if mark := b.marks[resource]; token.String() < mark {
		current, err := fence.ParseToken(mark)
		if err != nil {
			return 0, err
		}
		return current, &fence.StaleError{Resource: resource, Token: token, Current: current}
	}
	b.marks[resource] = token.String()
	return token, nil
}

type strict struct{ *fencetest.Memory }

func (b *strict) Raise(ctx context.Context, resource string, token fence.Token) (fence.Token, error) {
	if first, err := b.Once(ctx, resource, "strict", token); err == nil && !first {
		return token, &fence.StaleError{Resource: resource, Token: token, Current: token}
	}
	return b.Memory.Raise(ctx, resource, token)
}

type single struct{ *fencetest.Memory }

func (b *single) Raise(ctx context.Context, _ string, token fence.Token) (fence.Token, error) {
	return b.Memory.Raise(ctx, "all", token)
}

type still struct {
	*fencetest.Memory
	other *fencetest.Memory
}

func (b *still) Once(ctx context.Context, resource, slot string, token fence.Token) (bool, error) {
	return b.other.Once(ctx, resource, slot, token)
}

type perToken struct{ *fencetest.Memory }

func (b *perToken) Once(ctx context.Context, resource, _ string, token fence.Token) (bool, error) {
	return b.Memory.Once(ctx, resource, "x", token)
}

type always struct{ *fencetest.Memory }

func (b *always) Once(ctx context.Context, resource, slot string, token fence.Token) (bool, error) {
	_, err := b.Memory.Once(ctx, resource, slot, token)
	return err == nil, err
}

type racy struct {
	*fencetest.Memory
	mu    sync.Mutex
	slots map[string]bool
}

func (b *racy) Once(ctx context.Context, resource, slot string, token fence.Token) (bool, error) {
	b.mu.Lock()
	done := b.slots[resource+" "+slot]
	b.mu.Unlock()
	time.Sleep(time.Millisecond) // as long as a request to another machine
	if _, err := b.Memory.Once(ctx, resource, slot, token); err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slots[resource+" "+slot] = true
	return !done, nil
}

const envBroken = "TENURE_FENCETEST_BROKEN"

// TestBroken is the suite over one mistake, in a process of TestSuiteBites.
func TestBroken(t *testing.T) {
	breakIt := broken[os.Getenv(envBroken)]
	if breakIt == nil {
		t.Skip("for TestSuiteBites")
	}
	fencetest.Run(t, func(*testing.T) fencetest.Harness { return fencetest.Harness{Marks: breakIt(fencetest.NewMemory())} })
}

// TestSuiteBites shows the suite each mistake.
func TestSuiteBites(t *testing.T) {
	t.Parallel()
	for name := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestBroken$", "-test.count", "1")
			cmd.Env = append(os.Environ(), envBroken+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestBroken/") {
				t.Errorf("the suite passed it, or failed otherwise: %v\n%s", err, out)
			}
		})
	}
}
