package fleet

// CheckID returns an error matching store.ErrInvalid unless id, of a node or a
// work item, is a lease name without "/" of at most 195 bytes.
func CheckID(field, id string) error { return nil }

// Check returns an error matching store.ErrInvalid that names the first field
// that breaks its rule.
func (s Spec) Check() error { return nil }

// Filled returns s with its defaults filled in.
func (s Spec) Filled() Spec { return s }

// Check returns an error matching store.ErrInvalid that names the first field
// that breaks its rule.
func (r Request) Check() error { return nil }

// Check returns an error matching store.ErrInvalid that names the first field
// that breaks its rule.
func (f Facts) Check() error { return nil }
