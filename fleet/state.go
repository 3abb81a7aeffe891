package fleet

// CanBecome reports whether an item may go from s to to.
func (s WorkState) CanBecome(to WorkState) bool { return false }

// CanReport reports whether the owner of an item in s may report to.
func (s WorkState) CanReport(to WorkState) bool { return false }
