package ledger

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// ErrLedger is the error of a ledger that is damaged on disk.
var ErrLedger = errors.New("ledger damaged")

// Key makes the MACs of lines, under a key derived from the master key.
type Key struct {
	ID  string // id of the master key
	mac []byte
}

// NewKey derives the key for the MACs of lines from a master key.
func NewKey(master *[32]byte) *Key {
	key := keys.Derive(master, keys.ForLedger, nil)
	return &Key{credentials.KeyID(master), key[:]}
}

// A sealed line ends with `,"mac":"…","sum":"…"}`. SealBytes is the length of this suffix.
const (
	macField  = `,"mac":"`
	sumField  = `","sum":"`
	sealEnd   = `"}`
	SealBytes = len(macField) + 2*sha256.Size + len(sumField) + sha256.Size + len(sealEnd)
)

// Seal adds MAC and sum to the line of an entry.
func (k *Key) Seal(line []byte) []byte {
	line = line[:len(line)-1] // without the closing brace
	mac := hmac.New(sha256.New, k.mac)
	mac.Write(line)
	line = append(append(line, macField...), hex.EncodeToString(mac.Sum(nil))...)
	return append(append(append(line, sumField...), checksum(line)...), sealEnd...)
}

// checksum returns the sum of a line's beginning.
func checksum(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:sha256.Size/2])
}

// sealed reports whether a line ends exactly as Seal would end it. Without a key it checks only the sum.
func sealed(line []byte, k *Key) bool {
	if len(line) <= SealBytes {
		return false
	}
	body, rest := line[:len(line)-SealBytes], line[len(line)-SealBytes:]
	upToSum := line[:len(line)-len(sealEnd)-sha256.Size-len(sumField)]
	if !bytes.HasPrefix(rest, []byte(macField)) || string(line[len(upToSum):]) != sumField+checksum(upToSum)+sealEnd {
		return false
	}
	if k == nil {
		return true
	}
	mac := hmac.New(sha256.New, k.mac)
	mac.Write(body)
	return hmac.Equal(rest[len(macField):][:2*sha256.Size], hex.AppendEncode(nil, mac.Sum(nil)))
}

// Open reads the ledger and checks its chain of hashes. If key is not nil, it also checks the MACs. A crash during an
// append leaves a torn last line, which Open cuts off; nothing refers to that line.
func Open(d state.Disk, dir string, key *Key) (*Ledger, error) {
	path := dir + "/" + FileName
	data, err := d.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	end := CompleteLines(data)
	l, err := Parse(data[:end], key)
	if err != nil {
		return nil, err
	}
	l.begin(d, dir, path)
	l.size = int64(end)
	if tail := data[end:]; len(tail) > 0 {
		// A crash can leave a sector of zeros that was never written, but it does not change a line's newline into
		// another byte. So if the last line is complete except for its newline, the file is damaged.
		if n := len(tail) - 1; tail[n] != 0 && bytes.IndexByte(tail, '\n') < 0 {
			if _, err := Parse(append(slices.Clone(data[:end+n]), '\n'), key); err == nil && n > 0 {
				return nil, fmt.Errorf("%w: line %d is complete, but its newline was changed to another "+
					"byte", ErrLedger, len(l.Entries)+1)
			}
		}
		if err := d.Truncate(path, int64(end)); err != nil {
			return nil, err
		}
		l.Torn = true
	}
	return l, nil
}

// Continue creates a ledger in a new file of dir. It copies the complete lines of another ledger and leaves that
// ledger's file unchanged.
func Continue(d state.Disk, dir, name string, lines []byte, key *Key) (*Ledger, error) {
	if err := state.RemoveAll(d, dir, name); err != nil {
		return nil, err
	}
	path := dir + "/" + name
	if err := state.WriteNew(d, path, lines); err != nil {
		return nil, err
	}
	l, err := Parse(lines, key)
	if err != nil {
		return nil, err
	}
	l.begin(d, dir, path)
	l.size = int64(len(lines))
	return l, nil
}

// begin sets the location of the ledger's file.
func (l *Ledger) begin(d state.Disk, dir, path string) {
	l.Disk, l.dir, l.Path, l.Now = d, dir, path, time.Now
}

// FileName is the name of the ledger's file in the state directory.
const FileName = "ledger.jsonl"

// CompleteLines returns the length of data without a torn last line. A torn line has no newline, or contains a sector
// of zeros, which was never written.
func CompleteLines(data []byte) int {
	end := bytes.LastIndexByte(data, '\n') + 1
	if end == 0 {
		return 0
	}
	last := bytes.LastIndexByte(data[:end-1], '\n') + 1
	const sector = 512
	for at := last / sector * sector; at < end; at += sector {
		if part := data[max(at, last):min(at+sector, end)]; len(bytes.Trim(part, "\x00")) == 0 {
			return last
		}
	}
	return end
}

// Parse checks complete lines, and that their order is possible. From the first line with a MAC on, every line must
// have one; the chain of hashes protects the lines before it. Parse checks the MACs of lines under the given key. Of
// lines under a former master key it checks only the chain and the sums. Those lines must come before the first line
// under the given key, whose MAC covers them through its Prev. After that line, every line must be under the given key.
// If all MACs are under former keys, Foreign returns true.
func Parse(data []byte, key *Key) (*Ledger, error) {
	type epoch struct {
		task   core.Task
		number uint64
	}
	l := &Ledger{Key: key, heads: map[[32]byte]bool{}}
	openings := map[epoch]*Entry{} // maps to nil once the epoch has ended
	newest := map[core.Task]uint64{}
	for n := 1; len(data) > 0; n++ {
		line, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return nil, fmt.Errorf("%w: line %d has no newline", ErrLedger, n)
		}
		data = rest
		var e Entry
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("%w: line %d is not a valid entry", ErrLedger, n)
		}
		if _, err := dec.Token(); err != io.EOF {
			return nil, fmt.Errorf("%w: line %d is not a valid entry", ErrLedger, n)
		}
		if e.Seq != uint64(n) || e.Prev != hex.EncodeToString(l.Head[:]) {
			return nil, fmt.Errorf("%w: line %d does not continue the line before it", ErrLedger, n)
		}
		if l.KeyID != "" || e.Key != "" || e.MAC != "" || e.Sum != "" {
			if e.Key != "" {
				if key != nil && l.KeyID == key.ID && e.Key != key.ID {
					return nil, fmt.Errorf("%w: line %d is authenticated with key %q, but follows lines "+
						"authenticated with the present key",
						ErrLedger, n, e.Key)
				}
				l.KeyID = e.Key
			}
			check := key
			if key != nil && l.KeyID != key.ID {
				check = nil
			}
			if l.KeyID == "" || !sealed(line, check) {
				return nil, fmt.Errorf("%w: line %d has no MAC, or a wrong one", ErrLedger, n)
			}
		}
		if !e.soundUnit() {
			return nil, fmt.Errorf("%w: line %d has a unit of protection that this version does not know", ErrLedger, n)
		}
		if l.Moved() != nil {
			return nil, fmt.Errorf("%w: line %d follows the line that moved the tasks away, which must be the "+
				"last", ErrLedger, n)
		}
		if e.Steps > 0 && e.Kind != KindClose {
			return nil, fmt.Errorf("%w: line %d has steps but closes no epoch", ErrLedger, n)
		}
		id := epoch{e.Task(), e.Epoch}
		opened, known := openings[id]
		possible := true
		switch e.Kind {
		case KindOpen:
			if e.Cost.Empty() || e.Cost.Validate() != nil {
				return nil, fmt.Errorf("%w: line %d charges nothing", ErrLedger, n)
			}
			possible = e.Epoch > newest[id.task] && e.chargesOffsets() && e.sound(nil) && e.Reserved.Mu == 0
			openings[id], newest[id.task] = &e, e.Epoch
		case KindClose:
			possible = opened != nil && opened.Source == e.Source && (e.End == -1 || e.End >= opened.First) &&
				e.sound(opened) && (e.Steps == 0 || opened.stretches())
			openings[id] = nil
		case KindVoid:
			possible = opened != nil && opened.Source == e.Source
			openings[id] = nil
		case KindDestroyed:
			possible = known && opened == nil
		case KindRepair:
			_, ok = e.accepted()
			possible = opened != nil && ok
		case KindLimit:
		case KindImported, KindMoved:
			possible = e.Move.sound()
		default:
			possible = false
		}
		if e.Move != nil && e.Kind != KindImported && e.Kind != KindMoved {
			possible = false
		}
		if !possible {
			return nil, fmt.Errorf("%w: line %d cannot follow the lines before it", ErrLedger, n)
		}
		l.take(e, line)
	}
	return l, nil
}

// take adds a durable line to the ledger in memory.
func (l *Ledger) take(e Entry, line []byte) {
	l.Entries = append(l.Entries, e)
	l.index.add(l.Entries)
	l.Head = sha256.Sum256(line)
	l.heads[l.Head] = true
	if e.Kind == KindRepair {
		lost, _ := e.accepted()
		l.heads[lost] = true
	}
}

// Foreign reports whether the lines have MACs and the last MAC is under another key than the current one. The lines
// cannot be verified then: the operator changed the key or configured a wrong one, or somebody without the key rewrote
// the ledger.
func (l *Ledger) Foreign() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.foreignLocked()
}

func (l *Ledger) foreignLocked() bool {
	return l.Key != nil && l.KeyID != "" && l.KeyID != l.Key.ID
}

// Waits reports whether the operator must confirm a new key before a line can be added.
func (l *Ledger) Waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.foreignLocked() && !l.rekeyed
}

// AcceptKey is called when an operator asks to open or close an epoch, which confirms that the new key is intended. The
// next line may then follow lines under a former key, and its MAC covers them.
func (l *Ledger) AcceptKey() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rekeyed = true
}

// Append makes the entry durable. It sets Seq, Prev and Time. Only the methods in lines.go, which ensure that a line is
// valid, and tests call it.
func (l *Ledger) Append(e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(e)
}

func (l *Ledger) appendLocked(e Entry) error {
	if l.foreignLocked() && !l.rekeyed {
		return failure.Haltf(failure.Key,
			"the ledger's lines are authenticated with key %s, but the key file holds key %s: configure the file of "+
				"the ledger's key; if you changed the key, continue under the new one with: streamdp epoch open "+
				"STREAM", l.KeyID, l.Key.ID)
	}
	if m := l.Moved(); m != nil {
		return m.Refusal()
	}
	if !e.soundUnit() {
		return fmt.Errorf("internal: a line for epoch %d has an invalid unit of protection", e.Epoch)
	}
	if l.heads == nil {
		l.heads = map[[32]byte]bool{}
	}
	if l.partial {
		// The next line must not follow a partial one.
		if err := l.Disk.Truncate(l.Path, l.size); err != nil && !(l.size == 0 && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("ledger: %w", err)
		}
		l.partial = false
	}
	if err := l.Held.check(l.size); err != nil {
		return err
	}
	e.Seq = uint64(len(l.Entries)) + 1
	e.Prev = hex.EncodeToString(l.Head[:])
	e.Time = l.Now().UTC().Truncate(time.Second)
	keyID := l.KeyID
	if l.Key != nil && keyID != l.Key.ID {
		e.Key = l.Key.ID
		keyID = e.Key
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if l.Key != nil {
		line = l.Key.Seal(line)
	}
	if err := l.write(append(line, '\n')); err != nil {
		e := l.Disk.Truncate(l.Path, l.size)
		l.partial = e != nil && !(l.size == 0 && errors.Is(e, fs.ErrNotExist))
		return fmt.Errorf("ledger: %w", err)
	}
	if l.Key != nil {
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
	}
	l.KeyID = keyID
	l.take(e, line)
	l.size += int64(len(line)) + 1
	return nil
}

func (l *Ledger) write(line []byte) error {
	f, err := l.Disk.Append(l.Path)
	if err := state.Write(f, err, line); err != nil {
		return err
	}
	return l.Disk.SyncDir(l.dir)
}

// raw returns the lines after the first n, without their newlines.
func (l *Ledger) raw(n int) ([][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= len(l.Entries) {
		return nil, nil
	}
	data, err := l.Disk.ReadFile(l.Path)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if int64(len(data)) < l.size {
		return nil, fmt.Errorf("%w: the file is shorter than what was written to it", ErrLedger)
	}
	return bytes.Split(bytes.TrimSuffix(data[:l.size], []byte("\n")), []byte("\n"))[n:], nil
}

// adopt appends lines that a newer copy of this ledger has, and makes them durable.
func (l *Ledger) adopt(lines [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := l.Disk.ReadFile(l.Path)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := l.Held.check(l.size); err != nil {
		return err
	}
	more := append(bytes.Join(lines, []byte("\n")), '\n')
	all, err := Parse(append(data[:l.size:l.size], more...), l.Key)
	if err != nil {
		return err
	}
	if err := l.write(more); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.Entries, l.heads, l.Head, l.KeyID, l.index = all.Entries, all.heads, all.Head, all.KeyID, all.index
	l.size += int64(len(more))
	return nil
}
