package persons

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// Tag stands for a person within one epoch. The zero Tag stands for no person.
type Tag [16]byte

// Away returns the tag of all records whose user key belongs to another partition. Like records with the zero Tag,
// these records belong to nobody. A person can get one of these two tags by chance, with the same tiny probability as
// any other given tag.
func Away() Tag { return Tag{0: 0xff, 15: 0xff} }

// KeyBytes is the length of a Tagger's key.
const KeyBytes = 16

// Tagger turns user keys into tags by AES-CMAC (RFC 4493), a pseudorandom function of byte strings of any length. Among
// q persons whose keys have at most ℓ blocks of 16 bytes, some two share a tag with probability at most q²(5ℓ+1)/2¹²⁸,
// plus the advantage of an attack on AES-128. This is 1.8·10⁻²² for 10⁸ persons with keys of up to 16 bytes. Persons
// who share a tag are one person to the map. Somebody who writes user keys sees no tags, and so cannot search for two
// keys that share one.
//
// Cost: one AES block for each 16 bytes of the user key, no allocation. Its time depends on the length of the user key
// and, on processors without AES instructions, also on the key's bytes.
//
// A Tagger is not safe for concurrent use.
type Tagger struct {
	block cipher.Block
	whole Tag // K1 of RFC 4493, which masks a full last block
	short Tag // K2 of RFC 4493, which masks a padded last block
	x     Tag // scratch; a local variable would escape through the interface
}

// NewTagger returns a Tagger. Two Taggers with the same key give the same tags.
func NewTagger(key *[KeyBytes]byte) *Tagger {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // unreachable: 16 bytes
	}
	t := &Tagger{block: block}
	block.Encrypt(t.whole[:], t.whole[:])
	t.whole = double(t.whole)
	t.short = double(t.whole)
	return t
}

// double multiplies a by x in the field with 2¹²⁸ elements.
func double(a Tag) (b Tag) {
	high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	binary.BigEndian.PutUint64(b[:8], high<<1|low>>63)
	binary.BigEndian.PutUint64(b[8:], low<<1^(0x87&-(high>>63)))
	return b
}

// Tag returns the tag of a user key. An empty key has the zero Tag.
func (t *Tagger) Tag(user []byte) Tag {
	if len(user) == 0 {
		return Tag{}
	}
	x := &t.x
	*x = Tag{}
	for ; len(user) > len(x); user = user[len(x):] {
		xor(x, (*Tag)(user))
		t.block.Encrypt(x[:], x[:])
	}
	if len(user) == len(x) {
		xor(x, (*Tag)(user))
		xor(x, &t.whole)
	} else {
		for i, b := range user {
			x[i] ^= b
		}
		x[len(user)] ^= 0x80
		xor(x, &t.short)
	}
	t.block.Encrypt(x[:], x[:])
	return *x
}

func xor(a, b *Tag) {
	binary.NativeEndian.PutUint64(a[:8], binary.NativeEndian.Uint64(a[:8])^binary.NativeEndian.Uint64(b[:8]))
	binary.NativeEndian.PutUint64(a[8:], binary.NativeEndian.Uint64(a[8:])^binary.NativeEndian.Uint64(b[8:]))
}
