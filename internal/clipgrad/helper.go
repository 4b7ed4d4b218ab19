package clipgrad

import (
	"runtime"
	"sync/atomic"
	"time"
)

// helper takes part in passes in a goroutine of its own. A pass may take less time than
// waking a thread. So the goroutine waits for the next pass without sleeping, but no longer
// than patience. Then it ends; nobody has to close it. A pass never waits for a helper that
// has taken no unit of it, so one that gets no processor delays nothing.
type helper struct {
	pass atomic.Pointer[pass] // the last one
	here atomic.Bool          // there is a goroutine
}

// patience is about the time of waking a thread. To wait so long and then sleep costs at
// most twice as much as sleeping at once.
const patience = 100 * time.Microsecond

// begin gives the pass to the worker's goroutine.
func (w *worker) begin(p *pass) {
	w.pass.Store(p)
	if w.here.CompareAndSwap(false, true) {
		go w.help()
	}
}

// help runs pass after pass, as long as they come soon.
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

// soon waits, at most for patience, until is says so.
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
