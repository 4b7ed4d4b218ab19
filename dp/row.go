package dp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"math"
	"math/big"
)

// maxZ bounds every coordinate: Z is cut at ±maxZ. That changes the distribution of Z by 2⁻¹³¹, which is far less than
// a pseudo-random function differs from a random one.
const maxZ = 13.3

// blockWords is the number of words that are made at once. With this number, keystream, Gaussians and rounding of one
// block stay in the first-level cache.
const blockWords = 256

var zeros [8 * blockWords]byte

// If a row has at most fewWords words, its counters are encrypted one block at a time.
const fewWords = 12

// keyedRow is a row of the keyed generator. Word j is the little-endian uint64 at byte 8j of the AES-256-CTR keystream
// under K with IV u64be(step) ‖ 0. Extension word i of coordinate j is at byte 8i of the keystream under X with IV
// u64be(step) ‖ u64be(j·2¹⁶). X is derived when first needed.
type keyedRow struct {
	step       uint64
	block      cipher.Block
	stream     cipher.Stream
	base       int // the block that contains coordinate 0; may differ from 0 in a Cursor
	next       int // the block of words that stream returns next
	held       int // the block of words that buffer holds, −1: none
	size       int // words a block
	buffer     [8 * blockWords]byte
	iv         [16]byte
	near       [blockWords]float64 // scratch of RoundRow
	unsure     [blockWords]uint8   // scratch of RoundRow
	ext        cipher.Block
	pair       [32]byte // scratch of extension: counter and two words
	source     *array
	transcript Transcript
}

// open starts the row under the given key, and overwrites the caller's key. length is the number of coordinates that
// will probably be read.
func (r *keyedRow) open(key *[32]byte, step uint64, length int) {
	r.step = step
	r.block = newAES(key)
	r.stream, r.base, r.next, r.held = nil, 0, -1, -1
	r.size = min(max(length+length&1, 2), blockWords)
	r.ext, r.source = nil, nil
}

func newAES(key *[32]byte) cipher.Block {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // unreachable: 32 bytes
	}
	clear(key[:])
	return block
}

// words returns the words of the block that is b blocks after base, as bytes.
func (r *keyedRow) words(b int) []byte {
	b += r.base
	if r.held == b {
		return r.buffer[:8*r.size]
	}
	if r.size <= fewWords {
		// Encrypt counters directly: for a few blocks this takes less time and memory than a cipher.Stream. Write all
		// counters before reading the first, because the processor stalls if a block is read just after its halves were
		// written.
		blocks := r.buffer[:8*r.size]
		for i := range r.size / 2 {
			binary.BigEndian.PutUint64(blocks[16*i:], r.step)
			binary.BigEndian.PutUint64(blocks[16*i+8:], uint64(b)*uint64(r.size/2)+uint64(i))
		}
		for ; len(blocks) > 0; blocks = blocks[16:] {
			r.block.Encrypt(blocks[:16], blocks[:16])
		}
	} else {
		if r.next != b {
			binary.BigEndian.PutUint64(r.iv[:], r.step)
			binary.BigEndian.PutUint64(r.iv[8:], uint64(b)*uint64(r.size/2))
			r.stream = cipher.NewCTR(r.block, r.iv[:])
		}
		r.stream.XORKeyStream(r.buffer[:8*r.size], zeros[:8*r.size])
	}
	r.held, r.next = b, b+1
	return r.buffer[:8*r.size]
}

// extend derives the key X.
func (r *keyedRow) extend() {
	if r.ext == nil {
		r.ext = newAES(r.source.keyFor("streamdp/row-ext/v1\x00", r.step, &r.transcript))
	}
}

// extension writes extension words 0 … len(dst)−1 of coordinate j.
func (r *keyedRow) extension(j int, dst []uint64) {
	r.extend()
	// Encrypt counters directly, one block at a time, into memory that belongs to the row.
	counter, words := r.pair[:16], r.pair[16:]
	binary.BigEndian.PutUint64(counter, r.step)
	for i := range dst {
		if i%2 == 0 {
			binary.BigEndian.PutUint64(counter[8:], uint64(j+r.base*r.size)<<16+uint64(i/2))
			r.ext.Encrypt(words, counter)
		}
		dst[i] = binary.LittleEndian.Uint64(words[8*(i%2):])
	}
}

// Word implements Row.
func (r *keyedRow) Word(j int) uint64 {
	return binary.LittleEndian.Uint64(r.words(j / r.size)[8*(j%r.size):])
}

// At implements Row.
func (r *keyedRow) At(j int) float64 {
	u := r.Word(j)
	if isTail(u) {
		return r.tail(u, j)
	}
	return gaussianMain(u)
}

func (r *keyedRow) tail(u uint64, j int) float64 {
	var e [1]uint64
	r.extension(j, e[:])
	return gaussianTail(u, e[0])
}

// Fill implements Row.
func (r *keyedRow) Fill(dst []float64) {
	for j := 0; j < len(dst); j += r.size {
		r.fillFrom(dst[j:min(j+r.size, len(dst))], j)
	}
}

// fillFrom writes coordinates j … j+len(z)−1 to z. All must be in the block that starts with j.
func (r *keyedRow) fillFrom(z []float64, j int) {
	words := r.words(j / r.size)
	if fillMain(z, words) {
		r.eachTail(len(z), j, func(i int, zi float64) { z[i] = zi })
	}
}

// eachTail looks at the first n words of the block that starts with coordinate j. For each word in the tail it calls f
// with the index and the value.
func (r *keyedRow) eachTail(n, j int, f func(i int, z float64)) {
	words := r.words(j / r.size)
	for i := range n {
		if u := binary.LittleEndian.Uint64(words[8*i:]); isTail(u) {
			f(i, r.tail(u, j+i))
		}
	}
}

// Above implements Row. The exact Z_j is the real number whose uniform digits are bit 63 of the word for the sign, its
// other 63 bits, and then unlimited extension words. Above compares P(Z > |b|) with these digits. Both are known as
// intervals. As long as the intervals overlap, Above takes more digits or a higher precision.
func (r *keyedRow) Above(j int, b *big.Rat) bool {
	u := r.Word(j)
	negative := u>>63 == 1
	// Unless the signs decide, the answer is |Z| > |b| or its negation.
	if b.Sign() == 0 {
		return !negative
	}
	if (b.Sign() < 0) != negative {
		return !negative
	}
	bound := new(big.Rat).Abs(b)
	return r.exceeds(u<<1>>1, j, bound) != negative
}

// exceeds reports whether |Z_j| > b for b > 0.
func (r *keyedRow) exceeds(m uint64, j int, b *big.Rat) bool {
	if limit := new(big.Rat).SetFloat64(maxZ); b.Cmp(limit) >= 0 {
		return false
	}
	digits := new(big.Int).SetUint64(m) // p ∈ [digits, digits+1)·2^−64·(1+words)
	words := 0
	for prec := uint(192); ; {
		// Q(b) ∈ [q − 2^−prec, q + 2^−prec]
		q := upperTail(b, prec)
		margin := newFloat(prec+64).SetMantExp(newFloat(64).SetInt64(1), -int(prec))
		low, high := newFloat(prec+64).Sub(q, margin), newFloat(prec+64).Add(q, margin)

		// Digits finer than the error of q do not help, so take only as many as the precision allows.
		for want := int(prec)/64 - 1; words < want; words++ {
			e := make([]uint64, words+1)
			r.extension(j, e)
			digits.Add(digits.Lsh(digits, 64), new(big.Int).SetUint64(e[words]))
		}
		scale := -64 * (1 + words)
		p := newFloat(prec + 64).SetInt(digits)
		p.SetMantExp(p, scale)
		if p.Cmp(high) >= 0 { // p ≥ Q(b): |Z| ≤ b
			return false
		}
		p.SetInt(new(big.Int).Add(digits, big.NewInt(1)))
		p.SetMantExp(p, scale)
		if p.Cmp(low) <= 0 {
			return true
		}
		if prec = prec*3 + 64; prec > 1<<14 {
			// Two independent numbers would have 16 000 equal bits here, which cannot happen.
			panic("dp: an exact comparison did not terminate")
		}
	}
}

var _ Row = (*keyedRow)(nil)

// finite reports whether x is a number.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
