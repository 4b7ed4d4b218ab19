package dp

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
)

// A step with one array takes four SHA-256 hashes of one or two blocks each. With hash.Hash, a third of the time is not
// spent on compression: Sum copies the state, pads the copy, and copies its hash out. This file is faster because it
// knows the length of a message. It pads the message itself, and takes the hash from the state after the last block,
// which AppendBinary returns (FIPS 180-4, 6.2.2). HMAC keeps the states after its two padded keys, as FIPS 198-1 allows
// in section 6; they are as secret as the key.

// digest is an interface with the methods of sha256.New's result that this file uses.
type digest interface {
	hash.Hash
	encoding.BinaryAppender
	encoding.BinaryUnmarshaler
}

// The serialised state of a digest has four parts: a word that names the hash function, the hash so far, the bytes of
// an incomplete block, and a length.
const (
	stateSize = 4 + sha256.Size + sha256.BlockSize + 8
	stateHash = 4
)

// statesAreHashes is true if the digests of this build serialise their state in this form. If they do not, Sum computes
// all hashes. The hashes are equal, but take longer.
var statesAreHashes = func() bool {
	d, ok := sha256.New().(digest)
	if !ok {
		return false
	}
	message := []byte("streamdp")
	var padded [sha256.BlockSize]byte
	pad(padded[:], copy(padded[:], message), 0)
	d.Write(padded[:])
	state, err := d.AppendBinary(nil)
	sum := sha256.Sum256(message)
	if err != nil || len(state) != stateSize || !bytes.Equal(sum[:], state[stateHash:stateHash+sha256.Size]) {
		return false
	}
	d.Reset()
	return d.UnmarshalBinary(state) == nil
}()

// pad pads a message to whole blocks. The first n bytes of `blocks` are the message. `before` is the number of bytes
// hashed before the message.
func pad(blocks []byte, n, before int) {
	clear(blocks[n:])
	blocks[n] = 0x80
	binary.BigEndian.PutUint64(blocks[len(blocks)-8:], uint64(before+n)*8)
}

// hash64 returns SHA-256(a ‖ b).
func hash64(a, b *[32]byte) (sum [32]byte) {
	var blocks [2 * sha256.BlockSize]byte
	copy(blocks[:32], a[:])
	copy(blocks[32:64], b[:])
	if !statesAreHashes {
		return sha256.Sum256(blocks[:64])
	}
	blocks[64] = 0x80
	binary.BigEndian.PutUint64(blocks[120:], 64*8)
	d := sha256.New()
	d.Write(blocks[:])
	var state [stateSize]byte
	// With this type assertion, digest and state stay on the stack.
	after, err := d.(encoding.BinaryAppender).AppendBinary(state[:0])
	if err != nil {
		panic(err) // unreachable: statesAreHashes
	}
	copy(sum[:], after[stateHash:])
	return sum
}

// longestText is the longest text that a keyedHash accepts: two blocks with their padding.
const longestText = 2*sha256.BlockSize - 9

// keyedHash is HMAC-SHA256 under one key, for short messages.
type keyedHash struct {
	digest       digest
	inner, outer []byte // states after the padded keys
	state        []byte
	blocks       [2 * sha256.BlockSize]byte
	whole        hash.Hash // used instead of the other fields if !statesAreHashes
}

func newKeyedHash(key *[32]byte) *keyedHash {
	if !statesAreHashes {
		return &keyedHash{whole: hmac.New(sha256.New, key[:])}
	}
	k := &keyedHash{digest: sha256.New().(digest)}
	k.inner, k.outer = k.start(key, 0x36), k.start(key, 0x5c)
	clear(k.blocks[:])
	return k
}

// start returns the state after hashing the key, padded with zeros and XORed with mask.
func (k *keyedHash) start(key *[32]byte, mask byte) []byte {
	block := k.blocks[:sha256.BlockSize]
	clear(block[copy(block, key[:]):])
	for i := range block {
		block[i] ^= mask
	}
	k.digest.Reset()
	k.digest.Write(block)
	state, err := k.digest.AppendBinary(nil)
	if err != nil {
		panic(err) // unreachable: statesAreHashes
	}
	return state
}

// sum sets dst to HMAC(key, text). text has at most longestText bytes.
func (k *keyedHash) sum(dst *[32]byte, text []byte) {
	if k.whole != nil {
		k.whole.Reset()
		k.whole.Write(text)
		k.whole.Sum(dst[:0])
		return
	}
	if len(text) > longestText {
		panic("dp: the text is longer than two blocks")
	}
	blocks := k.blocks[:]
	if len(text)+9 <= sha256.BlockSize {
		blocks = blocks[:sha256.BlockSize]
	}
	pad(blocks, copy(blocks, text), sha256.BlockSize)
	k.after(k.inner, blocks)
	blocks = k.blocks[:sha256.BlockSize]
	pad(blocks, copy(blocks, k.state[stateHash:stateHash+sha256.Size]), sha256.BlockSize)
	k.after(k.outer, blocks)
	copy(dst[:], k.state[stateHash:])
}

// after sets k.state to the state that follows the state `before` when `blocks` are hashed.
func (k *keyedHash) after(before, blocks []byte) {
	if err := k.digest.UnmarshalBinary(before); err != nil {
		panic(err) // unreachable: its own state
	}
	k.digest.Write(blocks)
	state, err := k.digest.AppendBinary(k.state[:0])
	if err != nil {
		panic(err) // unreachable: statesAreHashes
	}
	k.state = state
}
