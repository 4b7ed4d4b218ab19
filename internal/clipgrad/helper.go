package clipgrad

import (
	"runtime"
	"sync/atomic"
	"time"
)

// helper runs a worker's part of each pass in a goroutine of its own. A pass may take
// less time than waking a thread. So the goroutine waits for the next pass without
// sleeping, and Sum waits for the goroutine in the same way, but both no longer than
// patience. Then the goroutine ends; nobody has to close it.
type helper struct {
	state atomic.Int32
	pass  *pass
	done  chan struct{} // receives if awaited
}

// States of a helper.
const (
	away    int32 = iota // no goroutine
	waiting              // for a pass
	working
	awaited // working, and Sum sleeps
)

// patience is about the time of waking a thread. To wait so long and then sleep costs at
// most twice as much as sleeping at once.
const patience = 100 * time.Microsecond

// begin gives the pass to the worker's goroutine.
func (w *worker) begin(p *pass) {
	w.pass = p
	if w.state.CompareAndSwap(waiting, working) {
		return
	}
	w.state.Store(working)
	go func() {
		for {
			w.run(w.pass)
			if w.state.Swap(waiting) == awaited {
				w.done <- struct{}{}
			}
			if !w.leaves(waiting) && w.state.CompareAndSwap(waiting, away) {
				return
			}
		}
	}()
}

// end waits for the end of the worker's part.
func (w *worker) end() {
	if !w.leaves(working) && w.state.CompareAndSwap(working, awaited) {
		<-w.done
	}
}

// leaves waits, at most for patience, until the state changes.
func (h *helper) leaves(state int32) bool {
	for begun := time.Now(); time.Since(begun) < patience; runtime.Gosched() {
		for range 64 {
			if h.state.Load() != state {
				return true
			}
		}
	}
	return false
}
