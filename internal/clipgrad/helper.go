package clipgrad

import (
	"runtime"
	"sync/atomic"
	"time"
)

// helper takes part in passes in its own goroutine. A pass may take less time than waking a thread. So the goroutine
// waits for the next pass without sleeping, for at most the time `patience`. Then it ends; nobody has to close it. A
// pass never waits for a helper that has not taken one of its units, so a helper without a processor delays nothing.
type helper struct {
	pass atomic.Pointer[pass] // the last pass
	here atomic.Bool          // the goroutine exists
}

// patience is about the time that waking a thread takes. Waiting for that long and then sleeping costs at most twice as
// much as sleeping at once.
const patience = 100 * time.Microsecond

// begin gives the pass to the worker's goroutine.
func (w *worker) begin(p *pass) {
	w.pass.Store(p)
	if w.here.CompareAndSwap(false, true) {
		go w.help()
	}
}

// help runs pass after pass. It ends when no pass has come for the time `patience`.
func (w *worker) help() {
	for {
		p := w.pass.Load()
		w.run(p)
		if soon(func() bool { return w.pass.Load() != p }) {
			continue
		}
		w.here.Store(false)
		if w.pass.Load() == p || !w.here.CompareAndSwap(false, true) {
			return
		}
	}
}

// soon waits until the function `is` returns true, but at most for the time `patience`. It returns the last result of
// `is`.
func soon(is func() bool) bool {
	for begun := time.Now(); time.Since(begun) < patience; runtime.Gosched() {
		for range 64 {
			if is() {
				return true
			}
		}
	}
	return false
}
