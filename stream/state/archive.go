package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/internal/bin"
)

// Archive stores the messages that a task published, in files archive-EPOCH.N of the task's directory, where N counts
// from 1. It contains only releases, so it is public like them.
//
// A file begins with a line that names the format. Then come frames: u64 length ‖ message ‖ SHA-256 of the message. A
// message is encoded as in a checkpoint. A process appends only to files that it created itself, so nothing follows a
// frame that a crash tore. A message may be in the archive twice.
type Archive struct {
	Disk  Disk
	Dir   string
	epoch uint64 // epoch of the file that is being written; 0: none
	file  File
	size  int
}

var archiveMagic = []byte("streamdp archive 1\n")

// archiveBytes is the size from which a new file is begun; tests lower it.
var archiveBytes = 64 << 20

// archiveName returns the epoch and number in the name of an archive's file.
func archiveName(name string) (epoch, n uint64, ok bool) {
	e, i, ok := strings.Cut(strings.TrimPrefix(name, "archive-"), ".")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	n, err2 := strconv.ParseUint(i, 10, 64)
	return epoch, n, ok && err1 == nil && err2 == nil && name == fmt.Sprintf("archive-%d.%d", epoch, n)
}

// files returns the names of the archive's files of an epoch, in order. For epoch 0 it returns the files of all epochs.
func (a *Archive) files(epoch uint64) ([]string, error) {
	names, err := a.Disk.ReadDir(a.Dir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		e, _, ok := archiveName(name)
		return !ok || epoch != 0 && e != epoch
	})
	slices.SortFunc(names, func(x, y string) int {
		e, n, _ := archiveName(x)
		f, m, _ := archiveName(y)
		return slices.Compare([]uint64{e, n}, []uint64{f, m})
	})
	return names, nil
}

// Append makes messages of an epoch durable. After an error the caller must append them again.
func (a *Archive) Append(epoch uint64, list []Message) error {
	if len(list) == 0 {
		return nil
	}
	w := &bin.Writer{}
	if a.epoch != epoch || a.size >= archiveBytes {
		if err := a.begin(epoch); err != nil {
			return err
		}
		w.Raw(archiveMagic)
	}
	for i := range list {
		at := len(w.B)
		w.Uint(0)
		list[i].encode(w)
		binary.LittleEndian.PutUint64(w.B[at:], uint64(len(w.B)-at-8))
		sum := sha256.Sum256(w.B[at+8:])
		w.Raw(sum[:])
	}
	_, err := a.file.Write(w.B)
	if err == nil {
		err = a.file.Sync()
	}
	if err != nil {
		a.close()
		return err
	}
	a.size += len(w.B)
	return nil
}

// begin creates the next file of the archive.
func (a *Archive) begin(epoch uint64) error {
	a.close()
	names, err := a.files(epoch)
	if err != nil {
		return err
	}
	n := uint64(0)
	if len(names) > 0 {
		_, n, _ = archiveName(names[len(names)-1])
	}
	f, err := a.Disk.Create(fmt.Sprintf("%s/archive-%d.%d", a.Dir, epoch, n+1))
	if err != nil {
		return err
	}
	if err := a.Disk.SyncDir(a.Dir); err != nil {
		f.Close()
		return err
	}
	a.epoch, a.file, a.size = epoch, f, 0
	return nil
}

// close closes the file that is being written.
func (a *Archive) close() {
	if a.file != nil {
		a.file.Close()
	}
	a.epoch, a.file = 0, nil
}

// errArchive is the error of a damaged archive.
var errArchive = errors.New("archive damaged")

// All yields the messages of the archive, one file at a time, and finally an error, if any.
func (a *Archive) All(epoch uint64) iter.Seq2[[]Message, error] {
	return func(yield func([]Message, error) bool) {
		names, err := a.files(epoch)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			yield(nil, err)
			return
		}
		for _, name := range names {
			data, err := a.Disk.ReadFile(a.Dir + "/" + name)
			var list []Message
			if err == nil {
				if list, err = ParseArchive(data); err != nil {
					err = fmt.Errorf("%s: %w", name, err)
				}
			}
			if !yield(list, err) || err != nil {
				return
			}
		}
	}
}

// IsArchive reports whether data begins like a file of an archive.
func IsArchive(data []byte) bool { return bytes.HasPrefix(data, archiveMagic) }

// ParseArchive parses a file of an archive. It omits a torn last frame, because Append did not return success for that
// frame.
func ParseArchive(data []byte) (list []Message, err error) {
	rest, ok := bytes.CutPrefix(data, archiveMagic)
	if !ok {
		if bytes.HasPrefix(archiveMagic, data) {
			return nil, nil
		}
		return nil, errArchive
	}
	for len(rest) >= 8 {
		n := binary.LittleEndian.Uint64(rest)
		if n > uint64(len(rest)-8) || uint64(len(rest)-8)-n < sha256.Size {
			break
		}
		message, sum := rest[8:8+n], rest[8+n:8+n+sha256.Size]
		if want := sha256.Sum256(message); !bytes.Equal(sum, want[:]) {
			if len(rest) == int(8+n+sha256.Size) {
				break
			}
			return nil, errArchive
		}
		r := &bin.Reader{B: message}
		p := readPending(r)
		if !r.Done() {
			return nil, errArchive
		}
		list = append(list, p)
		rest = rest[8+n+sha256.Size:]
	}
	return list, nil
}
