package epoch

import (
	"sync"
)

// coalesced does work for several callers at once. Each caller gets the result of a run that began after its call. So a
// thousand concurrent callers need only a few runs.
type coalesced struct {
	running sync.Mutex
	mu      sync.Mutex
	next    *jointRun // a run that has not begun; nil: none
}

type jointRun struct {
	callers int
	done    bool
	err     error
}

func (j *coalesced) do(f func() error) error {
	j.mu.Lock()
	if j.next == nil {
		j.next = &jointRun{}
	}
	r := j.next
	r.callers++
	j.mu.Unlock()
	j.running.Lock()
	defer j.running.Unlock()
	if !r.done {
		j.mu.Lock()
		j.next = nil
		j.mu.Unlock()
		r.err, r.done = f(), true
	}
	return r.err
}

// Waiting returns how many callers wait for a run that has not begun.
func (j *coalesced) Waiting() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.next == nil {
		return 0
	}
	return j.next.callers
}
