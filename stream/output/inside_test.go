package output

// asking returns how many tasks wait for the next reading to begin.
func (t *Partition) asking() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.past.Next
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.of)
}
