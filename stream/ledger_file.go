package stream

import (
	"bytes"
	"crypto/hkdf"
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
	"github.com/streamdp/streamdp/stream/core"
)

// errLedger says that the ledger on disk is damaged.
var errLedger = errors.New("ledger damaged")

// ledgerKey makes the MACs of lines, under a key derived from the master key.
type ledgerKey struct {
	id  string // of the master key
	mac []byte
}

func newLedgerKey(master *[32]byte) *ledgerKey {
	key, err := hkdf.Key(sha256.New, master[:], nil, "streamdp/ledger/v1\x00", 32)
	if err != nil {
		panic(err) // unreachable: 32 bytes
	}
	return &ledgerKey{credentials.KeyID(master), key}
}

// The end of a sealed line: ,"mac":"…","sum":"…"}.
const (
	macField  = `,"mac":"`
	sumField  = `","sum":"`
	sealEnd   = `"}`
	sealBytes = len(macField) + 2*sha256.Size + len(sumField) + sha256.Size + len(sealEnd)
)

// seal adds MAC and sum to the line of an entry.
func (k *ledgerKey) seal(line []byte) []byte {
	line = line[:len(line)-1] // its brace
	mac := hmac.New(sha256.New, k.mac)
	mac.Write(line)
	line = append(append(line, macField...), hex.EncodeToString(mac.Sum(nil))...)
	return append(append(append(line, sumField...), checksum(line)...), sealEnd...)
}

// checksum returns the sum for the beginning of a line.
func checksum(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:sha256.Size/2])
}

// sealed reports whether a line ends as seal would end it, byte for byte. Without a key
// it checks the sum only.
func sealed(line []byte, k *ledgerKey) bool {
	if len(line) <= sealBytes {
		return false
	}
	body, rest := line[:len(line)-sealBytes], line[len(line)-sealBytes:]
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

// openLedger reads the ledger, and checks its chain and, with a key, its MACs. It cuts
// off a torn last line: a crash inside an append leaves one, and nothing refers to it.
func openLedger(d disk, dir string, key *ledgerKey) (*ledger, error) {
	path := dir + "/" + ledgerName
	data, err := d.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	end := whole(data)
	l, err := parseLedger(data[:end], key)
	if err != nil {
		return nil, err
	}
	l.disk, l.dir, l.path, l.now, l.size = d, dir, path, time.Now, int64(end)
	if tail := data[end:]; len(tail) > 0 {
		// A line with its newline changed to another byte does not come from a crash. A
		// sector that was never written has zeros.
		if n := len(tail) - 1; tail[n] != 0 && bytes.IndexByte(tail, '\n') < 0 {
			if _, err := parseLedger(append(slices.Clone(data[:end+n]), '\n'), key); err == nil && n > 0 {
				return nil, fmt.Errorf("%w: line %d has another end than it had", errLedger, len(l.entries)+1)
			}
		}
		if err := d.Truncate(path, int64(end)); err != nil {
			return nil, err
		}
		l.torn = true
	}
	return l, nil
}

// ledgerName is the file of the ledger in the state directory.
const ledgerName = "ledger.jsonl"

// whole returns the length of data without a torn last line. A torn line lacks its end,
// or has a sector of zeros, which was never written.
func whole(data []byte) int {
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

// parseLedger checks complete lines, and that their sequence is possible. From the first
// line with a MAC on, every line must have one; the chain of hashes protects the lines
// before. It checks the MACs of lines under the given key. For lines under a former
// master key it checks the chain and the sums only; they stand before the first line
// under the given key, whose MAC covers them through its prev. Behind that line every
// line must be under the given key. Until there is such a line, foreign is true.
func parseLedger(data []byte, key *ledgerKey) (*ledger, error) {
	type epoch struct {
		task   core.Task
		number uint64
	}
	l := &ledger{key: key, heads: map[[32]byte]bool{}}
	openings := map[epoch]*Entry{} // nil: ended
	newest := map[core.Task]uint64{}
	for n := 1; len(data) > 0; n++ {
		line, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return nil, fmt.Errorf("%w: line %d has no end", errLedger, n)
		}
		data = rest
		var e Entry
		dec := json.NewDecoder(bytes.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("%w: line %d is no entry", errLedger, n)
		}
		if _, err := dec.Token(); err != io.EOF {
			return nil, fmt.Errorf("%w: line %d is no entry", errLedger, n)
		}
		if e.Seq != uint64(n) || e.Prev != hex.EncodeToString(l.head[:]) {
			return nil, fmt.Errorf("%w: line %d does not follow the one before", errLedger, n)
		}
		if l.keyID != "" || e.Key != "" || e.MAC != "" || e.Sum != "" {
			if e.Key != "" {
				if key != nil && l.keyID == key.id && e.Key != key.id {
					return nil, fmt.Errorf("%w: line %d is under key %q, behind lines under the present key", errLedger, n, e.Key)
				}
				l.keyID = e.Key
			}
			check := key
			if key != nil && l.keyID != key.id {
				check = nil
			}
			if l.keyID == "" || !sealed(line, check) {
				return nil, fmt.Errorf("%w: line %d has no MAC, or that of another line", errLedger, n)
			}
		}
		if !e.soundUnit() {
			return nil, fmt.Errorf("%w: line %d protects what this version does not know", errLedger, n)
		}
		if l.moved() != nil {
			return nil, fmt.Errorf("%w: line %d is behind the one that moved the tasks away", errLedger, n)
		}
		if e.Steps > 0 && e.Kind != kindClose {
			return nil, fmt.Errorf("%w: line %d has steps and closes nothing", errLedger, n)
		}
		id := epoch{e.Task(), e.Epoch}
		opened, known := openings[id]
		possible := true
		switch e.Kind {
		case kindOpen:
			if e.Cost.Empty() || e.Cost.Validate() != nil {
				return nil, fmt.Errorf("%w: line %d charges nothing", errLedger, n)
			}
			possible = e.Epoch > newest[id.task] && e.chargesOffsets() && e.sound(nil) && e.Reserved.Mu == 0
			openings[id], newest[id.task] = &e, e.Epoch
		case kindClose:
			possible = opened != nil && opened.Source == e.Source && (e.End == -1 || e.End >= opened.First) && e.sound(opened) && (e.Steps == 0 || opened.stretches())
			openings[id] = nil
		case kindVoid:
			possible = opened != nil && opened.Source == e.Source
			openings[id] = nil
		case kindDestroyed:
			possible = known && opened == nil
		case kindRepair:
			_, ok = e.accepted()
			possible = opened != nil && ok
		case kindLimit:
		case kindImported, kindMoved:
			possible = e.Move.sound()
		default:
			possible = false
		}
		if e.Move != nil && e.Kind != kindImported && e.Kind != kindMoved {
			possible = false
		}
		if !possible {
			return nil, fmt.Errorf("%w: line %d can't follow what is before it", errLedger, n)
		}
		l.take(e, line)
	}
	return l, nil
}

// take adds a durable line to the ledger in memory.
func (l *ledger) take(e Entry, line []byte) {
	l.entries = append(l.entries, e)
	l.index.add(l.entries)
	l.head = sha256.Sum256(line)
	l.heads[l.head] = true
	if e.Kind == kindRepair {
		lost, _ := e.accepted()
		l.heads[lost] = true
	}
}

// foreign reports whether the lines have MACs, and none of them is under the present
// key. Then nothing proves them: the operator has changed the key or configured a wrong
// one, or somebody without the key has written the ledger anew.
func (l *ledger) foreign() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.foreignLocked()
}

func (l *ledger) foreignLocked() bool {
	return l.key != nil && l.keyID != "" && l.keyID != l.key.id
}

// waits reports whether no line can be added without the operator's word.
func (l *ledger) waits() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.foreignLocked() && !l.rekeyed
}

// acceptKey takes an operator's request to open or close an epoch for the word that a new key
// is meant: the next line may follow lines under a former key, and binds them.
func (l *ledger) acceptKey() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rekeyed = true
}

// append makes the entry durable. It sets Seq, Prev and Time.
func (l *ledger) append(e Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendLocked(e)
}

func (l *ledger) appendLocked(e Entry) error {
	if l.foreignLocked() && !l.rekeyed {
		return halted(haltKey, "the ledger's lines are under key %s, the key file holds key %s: configure the file of that key; "+
			"if you changed the key, streamdp epoch open STREAM goes on under the new one", l.keyID, l.key.id)
	}
	if m := l.moved(); m != nil {
		return m.refusal()
	}
	if !e.soundUnit() {
		return fmt.Errorf("internal: a line for epoch %d protects nobody that is known", e.Epoch)
	}
	if l.heads == nil {
		l.heads = map[[32]byte]bool{}
	}
	if l.partial {
		// The next line must not follow a partial one.
		if err := l.disk.Truncate(l.path, l.size); err != nil && !(l.size == 0 && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("ledger: %w", err)
		}
		l.partial = false
	}
	if err := l.held.check(l.size); err != nil {
		return err
	}
	e.Seq = uint64(len(l.entries)) + 1
	e.Prev = hex.EncodeToString(l.head[:])
	e.Time = l.now().UTC().Truncate(time.Second)
	keyID := l.keyID
	if l.key != nil && keyID != l.key.id {
		e.Key = l.key.id
		keyID = e.Key
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if l.key != nil {
		line = l.key.seal(line)
	}
	if err := l.write(append(line, '\n')); err != nil {
		e := l.disk.Truncate(l.path, l.size)
		l.partial = e != nil && !(l.size == 0 && errors.Is(e, fs.ErrNotExist))
		return fmt.Errorf("ledger: %w", err)
	}
	if l.key != nil {
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
	}
	l.keyID = keyID
	l.take(e, line)
	l.size += int64(len(line)) + 1
	return nil
}

func (l *ledger) write(line []byte) error {
	f, err := l.disk.Append(l.path)
	if err := write(f, err, line); err != nil {
		return err
	}
	return l.disk.SyncDir(l.dir)
}

// raw returns the lines after the first n, without their ends.
func (l *ledger) raw(n int) ([][]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n >= len(l.entries) {
		return nil, nil
	}
	data, err := l.disk.ReadFile(l.path)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	if int64(len(data)) < l.size {
		return nil, fmt.Errorf("%w: it became shorter", errLedger)
	}
	return bytes.Split(bytes.TrimSuffix(data[:l.size], []byte("\n")), []byte("\n"))[n:], nil
}

// adopt makes lines durable that a newer copy of this ledger has.
func (l *ledger) adopt(lines [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	data, err := l.disk.ReadFile(l.path)
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := l.held.check(l.size); err != nil {
		return err
	}
	more := append(bytes.Join(lines, []byte("\n")), '\n')
	all, err := parseLedger(append(data[:l.size:l.size], more...), l.key)
	if err != nil {
		return err
	}
	if err := l.write(more); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	l.entries, l.heads, l.head, l.keyID, l.index = all.entries, all.heads, all.head, all.keyID, all.index
	l.size += int64(len(more))
	return nil
}
