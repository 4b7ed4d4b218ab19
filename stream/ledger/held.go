package ledger

import (
	"errors"
	"fmt"
	"os"

	"github.com/streamdp/streamdp/internal/osfile"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// Held is the ledger's file, locked by this process. It is a second lock: somebody may remove
// the lock file of the state directory, and another process could then lock the directory, but not the ledger.
type Held struct {
	file *os.File
	path string
}

// Hold opens and locks the ledger's file, and creates it if it is missing. A simulated disk needs no lock.
func Hold(d state.Disk, dir string) (*Held, error) {
	if f, ok := d.(state.FileShard); ok {
		d = f.Disk
	}
	if _, real := d.(state.OS); !real {
		return nil, nil
	}
	h := &Held{path: dir + "/" + FileName}
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
		h.Release()
		return nil, err
	}
	return h, nil
}

// Release unlocks and closes the file.
func (h *Held) Release() {
	if h == nil {
		return
	}
	osfile.Unlock(h.file)
	h.file.Close()
}

// same returns an error if the path now leads to another file than the held one.
func (h *Held) same() error {
	held, err := h.file.Stat()
	if err != nil {
		return err
	}
	if named, err := os.Stat(h.path); err != nil || !os.SameFile(held, named) {
		return failure.Haltf(failure.State,
			"ledger %s was replaced by another file while this process had it open: stop the process, and restore "+
				"the newest ledger",
			h.path)
	}
	return nil
}

// check returns an error if the file was changed by somebody else: another file has its name, or its size differs from
// size.
func (h *Held) check(size int64) error {
	if h == nil {
		return nil
	}
	if err := h.same(); err != nil {
		return err
	}
	info, err := h.file.Stat()
	if err == nil && info.Size() != size {
		err = failure.Haltf(failure.State,
			"ledger %s has %d bytes, but this process left it with %d: another process wrote to it; stop both, and "+
				"restore the newest ledger", h.path, info.Size(), size)
	}
	return err
}
