package persons

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

// Tag stands for a person inside one epoch. The zero Tag stands for no person.
type Tag [16]byte

// Away returns the tag of all records whose user key belongs to another partition. They are
// nobody's, as those with the zero Tag. That somebody has one of the two by chance is as unlikely
// as any other given tag.
func Away() Tag { return Tag{0: 0xff, 15: 0xff} }

// KeyBytes is the length of a Tagger's key.
const KeyBytes = 16

// Tagger turns user keys into tags by AES-CMAC (RFC 4493), a pseudorandom function of byte
// strings of any length. Two of q persons whose keys have at most ℓ blocks of 16 bytes share a
// tag with probability at most q²(5ℓ+1)/2¹²⁸, plus the advantage against AES-128: 1.8·10⁻²² for
// 10⁸ persons with keys of up to 16 bytes. Who shares a tag is one person to the map; who
// writes user keys sees no tag, so cannot look for two that do.
//
// Cost: one AES block for each 16 bytes of the user key, no allocation. It takes time that
// depends on the length of the user key, and where the processor has no AES instructions also
// on the key's bytes.
//
// A Tagger is not safe for concurrent use.
type Tagger struct {
	block cipher.Block
	whole Tag // K1: masks a last block that is full
	short Tag // K2: masks a padded one
	x     Tag // here, as what goes through an interface would escape
}

// NewTagger returns a Tagger. Two of one key give the same tags.
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

// double multiplies by x in the field of 2¹²⁸ elements.
func double(a Tag) (b Tag) {
	high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	binary.BigEndian.PutUint64(b[:8], high<<1|low>>63)
	binary.BigEndian.PutUint64(b[8:], low<<1^(0x87&-(high>>63)))
	return b
}

// Tag returns the tag of a user key. An empty key has none.
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
