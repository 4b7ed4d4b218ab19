package epoch

import (
	"errors"
	"runtime"
	"sync"
	"testing"
)

// TestJoint: callers share a run that begins after their calls, and get its error.
func TestJoint(t *testing.T) {
	t.Parallel()
	var j coalesced
	var wg sync.WaitGroup
	running, goOn := make(chan struct{}), make(chan struct{})
	wg.Go(func() {
		if err := j.do(func() error { close(running); <-goOn; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-running
	runs, wrong := 0, errors.New("wrong")
	const callers = 100
	for range callers {
		wg.Go(func() {
			if err := j.do(func() error { runs++; return wrong }); !errors.Is(err, wrong) {
				t.Errorf("got %v", err)
			}
		})
	}
	for n := 0; n < callers; runtime.Gosched() {
		j.mu.Lock()
		if j.next != nil {
			n = j.next.callers
		}
		j.mu.Unlock()
	}
	close(goOn)
	wg.Wait()
	if runs != 1 {
		t.Errorf("%d runs for callers that waited at the same time", runs)
	}
	if err := j.do(func() error { return nil }); err != nil {
		t.Errorf("a later call got the error of an earlier one: %v", err)
	}
}
