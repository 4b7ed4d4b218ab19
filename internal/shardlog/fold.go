package shardlog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// These keys are reserved for the protocol.
const (
	ownerKey = "owner" // its record has no chunk number, and is not sealed
	headKey  = "head"
)

// Owner is the instance that acquired a shard. Its record is not sealed.
type Owner struct {
	Token    string `json:"owner"` // 16 random bytes in hexadecimal, new at each acquisition
	Instance string `json:"instance"`
}

func (o Owner) record() Record {
	value, err := json.Marshal(o)
	if err != nil {
		panic(err) // unreachable: the struct has only strings
	}
	return Record{[]byte(ownerKey), value}
}

func parseOwner(value []byte) (Owner, error) {
	var o Owner
	err := json.Unmarshal(value, &o)
	if token, e := hex.DecodeString(o.Token); err != nil || e != nil || len(token) != 16 || len(o.Instance) > maxKey {
		return Owner{}, &HaltError{HaltState, errors.New("the record of the owner is damaged")}
	}
	return o, nil
}

// head is the number of the ledger's lines, without the genesis, and the hash of the last line.
type head struct {
	lines uint64
	hash  [32]byte
}

func (h head) bytes() []byte {
	return append(binary.BigEndian.AppendUint64(nil, h.lines), h.hash[:]...)
}

func parseHead(data []byte) (h head, err error) {
	if len(data) != 8+32 {
		return h, errSealed
	}
	h.lines = binary.BigEndian.Uint64(data)
	copy(h.hash[:], data[8:])
	return h, nil
}

// after returns the head that results from appending lines.
func (h head) after(lines [][]byte) head {
	if n := len(lines); n > 0 {
		h.lines += uint64(n)
		h.hash = sha256.Sum256(lines[n-1])
	}
	return h
}

// fold is the state of a shard, computed from the records of its state log.
type fold struct {
	owner   Owner
	own     bool // the owner's record with the given token was found
	token   string
	records map[string]stored // by record key
	bytes   int
	seq     uint64 // the largest number of any update

	head *head // set by open
}

// stored is a sealed record.
type stored struct {
	sealedHead
	data []byte
	with int
}

// add processes the next record of the log.
func (s *fold) add(r Record) error {
	name := string(r.Key)
	if name == ownerKey {
		if r.Value == nil {
			return &HaltError{HaltState, errors.New("the record of the owner was removed")}
		}
		o, err := parseOwner(r.Value)
		s.owner, s.own = o, s.own || o.Token == s.token
		return err
	}
	if _, _, ok := parseKey(r.Key); !ok {
		return &HaltError{HaltState, errors.New("the state has a record with an invalid key")}
	}
	old := s.records[name]
	s.bytes -= len(old.data)
	if r.Value == nil {
		delete(s.records, name)
		return nil
	}
	h, with, err := parseSealed(r.Value)
	switch {
	case err != nil:
		return about(name, err)
	case h.seq < old.seq:
		return about(name, errors.New("is older than the value that it replaces"))
	}
	s.seq = max(s.seq, h.seq)
	s.bytes += len(r.Value)
	if s.bytes > 2*maxState {
		return &HaltError{HaltState, fmt.Errorf("the state is larger than %d MiB", 2*maxState>>20)}
	}
	s.records[name] = stored{h, r.Value, with}
	return nil
}

// about returns an error that names the value.
func about(name string, err error) error {
	if halt := (*HaltError)(nil); errors.As(err, &halt) {
		return err
	}
	return &HaltError{HaltState, fmt.Errorf("value %q %w", name, err)}
}

// held is the information that a holding keeps about a value.
type held struct {
	chunks, bytes int
	under         string
	absent        bool // the value named by Under is destroyed
}

// open decrypts all values. It gives the keys that are derived from possible secrets to the sealer.
func (s *fold) open(seals *sealer) (values map[string]Value, known map[string]held, err error) {
	values, known = map[string]Value{}, map[string]held{}
	var later []string
	for _, name := range sortedKeys(s.records) {
		key, chunk, _ := parseKey([]byte(name))
		if k, ok := known[key]; ok {
			// A chunk after the last one may remain from an earlier, longer value.
			if chunk >= k.chunks && s.records[name].seq >= s.records[string(recordKey(key, 0))].seq {
				return nil, nil, about(key, errors.New("has an extra chunk"))
			}
			continue
		}
		first, ok := s.records[string(recordKey(key, 0))]
		if !ok {
			return nil, nil, about(name, errors.New("lacks its first chunk"))
		}
		k := held{chunks: first.chunks, under: first.under}
		for i := range first.chunks {
			part, ok := s.records[string(recordKey(key, i))]
			if !ok || part.sealedHead != first.sealedHead {
				return nil, nil, about(key, errors.New("lacks a chunk"))
			}
			k.bytes += len(part.data) - part.with - tagBytes
		}
		if known[key] = k; k.under != "" {
			later = append(later, key)
			continue
		}
		v, err := s.value(seals, key, k, &seals.own)
		if err != nil {
			return nil, nil, err
		}
		values[key] = v
		seals.keep(key, seals.wrapOf(v))
	}
	for _, key := range later {
		k := known[key]
		w := seals.under[k.under]
		if w == nil {
			if _, ok := known[k.under]; ok {
				return nil, nil, about(key, errors.New("is encrypted under a value that is not a secret of this shard"))
			}
			k.absent = true
			known[key] = k
			continue
		}
		if values[key], err = s.value(seals, key, k, w); err != nil {
			return nil, nil, err
		}
	}
	if v, ok := values[headKey]; ok {
		h, err := parseHead(v.Data)
		if err != nil || v.Under != "" {
			return nil, nil, about(headKey, errSealed)
		}
		s.head = &h
		delete(values, headKey)
	}
	return values, known, nil
}

// value opens the records of a value.
func (s *fold) value(seals *sealer, key string, k held, w *wrap) (v Value, err error) {
	v.Under = k.under
	if k.chunks > 1 {
		v.Data = make([]byte, 0, k.bytes)
	}
	for i := range k.chunks {
		name := string(recordKey(key, i))
		r := s.records[name]
		if v.Data, err = seals.open(v.Data, w, name, r.data, r.with); err != nil {
			return v, about(key, err)
		}
	}
	return v, nil
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
