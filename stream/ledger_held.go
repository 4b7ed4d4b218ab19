package stream

import (
	"errors"
	"fmt"
	"os"

	"github.com/streamdp/streamdp/internal/osfile"
)

// heldLedger is the ledger's file, locked for this process. The lock of the state
// directory is a separate file; if somebody removes that file, a second process gets in.
type heldLedger struct {
	file *os.File
	path string
}

// holdLedger opens and locks the ledger, and makes it if it is missing. A simulated disk
// needs no lock.
func holdLedger(d disk, dir string) (*heldLedger, error) {
	if f, ok := d.(fileShard); ok {
		d = f.disk
	}
	if _, real := d.(osDisk); !real {
		return nil, nil
	}
	h := &heldLedger{path: dir + "/" + ledgerName}
	var err error
	if h.file, err = os.OpenFile(h.path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if err = osfile.Lock(h.file); errors.Is(err, osfile.ErrLocked) {
		err = fmt.Errorf("ledger %s is in use by another process", h.path)
	}
	if err == nil {
		err = h.same()
	}
	if err != nil {
		h.release()
		return nil, err
	}
	return h, nil
}

// release unlocks and closes the file.
func (h *heldLedger) release() {
	if h == nil {
		return
	}
	osfile.Unlock(h.file)
	h.file.Close()
}

// same returns an error if the path leads to another file than the one that is held.
func (h *heldLedger) same() error {
	held, err := h.file.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Stat(h.path); err != nil || !os.SameFile(held, named) {
		return halted(haltState, "another file than the one that this process reads is the ledger %s now: stop, and restore the newest one", h.path)
	}
	return nil
}

// check returns an error if the file is not as this process left it: another file has its
// name, or its size differs.
func (h *heldLedger) check(size int64) error {
	if h == nil {
		return nil
	}
	if err := h.same(); err != nil {
		return err
	}
	info, err := h.file.Stat()
	if err == nil && info.Size() != size {
		err = halted(haltState, "the ledger %s has %d bytes, this process left %d: another one wrote to it; stop both, and restore the newest ledger", h.path, info.Size(), size)
	}
	return err
}
