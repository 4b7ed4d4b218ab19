package shardlog

import (
	"bytes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/seal"
)

// Value is a value of a shard's state.
//
// It is sealed in chunks of at most 900 kB, one record each, with AES-256-GCM. Each record has its own key, derived
// from W and a salt of 32 random bytes:
//
//	format ‖ u64be seq ‖ u32be chunks ‖ u16be length ‖ Under ‖ salt ‖ AES-256-GCM of the chunk
//	key = HKDF-SHA256(W, salt, "streamdp/state/v1\0"), nonce = 0
//	authenticated with it: genesis hash ‖ u32be length ‖ record key ‖ everything up to the salt's end
//	W = HKDF-SHA256(master, "", "streamdp/wrap/v1\0"), or with Under
//	W = HKDF-SHA256(master, Data of Under, "streamdp/store/v1\0")
//
// Privacy: somebody who has the logs but not the master key learns only keys, sizes and times. A value with Under
// becomes unreadable, in all its copies, when the value named by Under and all copies of that value are destroyed.
type Value struct {
	Data []byte
	// Under is the key of another value, an epoch's secret, without which this value cannot be read. The secret itself
	// has no Under. Empty: the master key alone opens this value.
	Under string
}

// MaxLine is the maximum size of a ledger line in bytes. A line is one record.
const MaxLine = chunkBytes

const (
	chunkBytes = 900_000
	// maxState is the maximum total size of a shard's values in bytes. An update must be smaller.
	maxState  = 64 << 20
	maxKey    = 1000
	maxSecret = 4096 // maximum size in bytes of a value that is the Under of others
	saltBytes = seal.Salt
	tagBytes  = seal.Tag

	formatByte = 1
)

// sealedHead is the part of a sealed record before its salt.
type sealedHead struct {
	seq    uint64
	chunks int
	under  string
}

func (s sealedHead) append(b []byte) []byte {
	b = append(b, formatByte)
	b = binary.BigEndian.AppendUint64(b, s.seq)
	b = binary.BigEndian.AppendUint32(b, uint32(s.chunks))
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.under)))
	return append(b, s.under...)
}

var errSealed = errors.New("is damaged, or was sealed with another key or for another ledger")

// parseSealed returns the head of a sealed record, and the length of the part that is authenticated together with the
// chunk.
func parseSealed(data []byte) (s sealedHead, with int, err error) {
	const fixed = 1 + 8 + 4 + 2
	if len(data) > 0 && data[0] > formatByte {
		return s, 0, &HaltError{HaltFormat,
			fmt.Errorf("a value has format %d, but this version reads only %d", data[0], formatByte)}
	}
	if len(data) < fixed || data[0] != formatByte {
		return s, 0, errSealed
	}
	chunks, under := binary.BigEndian.Uint32(data[9:]), int(binary.BigEndian.Uint16(data[13:]))
	with = fixed + under + saltBytes
	if len(data) < with+tagBytes || len(data) > with+chunkBytes+tagBytes || chunks < 1 ||
		chunks > maxState/chunkBytes+1 || under > maxKey {
		return s, 0, errSealed
	}
	return sealedHead{binary.BigEndian.Uint64(data[1:]), int(chunks), string(data[fixed:][:under])}, with, nil
}

// recordKey returns the key of a value's record.
func recordKey(key string, chunk int) []byte {
	return strconv.AppendInt(append([]byte(key), ':'), int64(chunk), 10)
}

// parseKey is the inverse of recordKey.
func parseKey(record []byte) (key string, chunk int, ok bool) {
	i := bytes.LastIndexByte(record, ':')
	if i < 1 || i > maxKey {
		return "", 0, false
	}
	chunk, err := strconv.Atoi(string(record[i+1:]))
	key = string(record[:i])
	return key, chunk, err == nil && chunk >= 0 && chunk <= maxState/chunkBytes &&
		bytes.Equal(recordKey(key, chunk), record)
}

// wrap is a key from which the keys of records are derived.
type wrap [32]byte

// sealer seals and opens the values of one shard. It keeps the keys that are derived from values which are the Under of
// others.
type sealer struct {
	master  *[32]byte
	genesis [32]byte // hash of the genesis line
	own     wrap     // key for values without Under
	under   map[string]*wrap
}

func newSealer(master *[32]byte) *sealer {
	s := &sealer{master: master, under: map[string]*wrap{}}
	s.own = keys.Derive(master, keys.ForWrap, nil)
	return s
}

// wrapOf returns the key for values whose Under is v, or nil if v cannot be an Under.
func (s *sealer) wrapOf(v Value) *wrap {
	if v.Under != "" || len(v.Data) == 0 || len(v.Data) > maxSecret {
		return nil
	}
	w := wrap(keys.Derive(s.master, keys.ForStore, v.Data))
	return &w
}

// keep stores the key for values under the given value; nil removes it.
func (s *sealer) keep(key string, w *wrap) {
	if old := s.under[key]; old != nil && old != w {
		clear(old[:])
	}
	delete(s.under, key)
	if w != nil {
		s.under[key] = w
	}
}

// begin removes all keys that were derived from values, and binds seals to the ledger whose genesis line has this hash.
func (s *sealer) begin(genesis [32]byte) {
	s.genesis = genesis
	for key := range s.under {
		s.keep(key, nil)
	}
}

// wipe overwrites the keys.
func (s *sealer) wipe() {
	clear(s.own[:])
	s.begin(s.genesis)
}

// cipher returns the cipher of a record, and the data that is authenticated with its content. before ends with the
// salt.
func (s *sealer) cipher(w *wrap, record, before []byte) (cipher.AEAD, []byte, error) {
	key := keys.Derive((*[32]byte)(w), keys.ForState, before[len(before)-saltBytes:])
	aead, err := seal.New(key[:])
	with := binary.BigEndian.AppendUint32(bytes.Clone(s.genesis[:]), uint32(len(record)))
	return aead, append(append(with, record...), before...), err
}

// seal returns the records of a value. w is the key for its Under.
func (s *sealer) seal(key string, seq uint64, v Value, w *wrap) ([]Record, error) {
	if v.Under == "" {
		w = &s.own
	}
	h := sealedHead{seq, chunksOf(len(v.Data)), v.Under}
	records := make([]Record, h.chunks)
	for i := range records {
		data := v.Data[min(i*chunkBytes, len(v.Data)):min((i+1)*chunkBytes, len(v.Data))]
		salt := dp.NewSecret() // 32 random bytes
		b := make([]byte, 0, 64+len(v.Under)+len(data)+tagBytes)
		b = append(h.append(b), salt[:]...)
		name := recordKey(key, i)
		aead, with, err := s.cipher(w, name, b)
		if err != nil {
			return nil, err
		}
		records[i] = Record{name, aead.Seal(b, seal.NoNonce, data, with)}
	}
	return records, nil
}

// open appends the decrypted content of a record to b.
func (s *sealer) open(b []byte, w *wrap, name string, data []byte, with int) ([]byte, error) {
	aead, authentic, err := s.cipher(w, []byte(name), data[:with])
	if err != nil {
		return nil, err
	}
	b, err = aead.Open(b, seal.NoNonce, data[with:], authentic)
	if err != nil {
		return nil, errSealed
	}
	return b, nil
}

// chunksOf returns the number of records of a value.
func chunksOf(length int) int { return max(1, (length+chunkBytes-1)/chunkBytes) }
