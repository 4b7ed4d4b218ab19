package stream

// asking returns how many tasks wait for the reading that begins next.
func (t *tail) asking() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.past.next
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.of)
}
