package dp

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"runtime"
	"sync"

	"github.com/streamdp/streamdp/internal/keys"
)

// NoiseFormat is the version of the computation from a master key to a noise row: derivations, word layout, table and
// rounding. It is part of an epoch's digest, so a new version needs a new epoch.
const NoiseFormat = "row/v1"

// NewSecret returns 32 random bytes from the system's generator, for use as a master key or an epoch secret. It returns
// no error: the program ends if the system has no randomness.
func NewSecret() (s [32]byte) {
	rand.Read(s[:])
	return s
}

// Epoch holds the keys of one epoch of one task and derives its noise:
//
//	EK = HKDF(master, salt = epoch secret, "streamdp/epoch/v1\0" ‖ lp(stream) ‖ u64be(epoch) ‖ nonce ‖ digest)
//	TK = HKDF(EK, "streamdp/noise/v1\0" ‖ lp(array))
//	K  = HMAC(TK, "streamdp/row/v1\0" ‖ u64be(t) ‖ h)
//	X  = HMAC(TK, "streamdp/row-ext/v1\0" ‖ u64be(t) ‖ h)
//
// with SHA-256 throughout, lp(s) = u32be(len) ‖ s, and h the transcript after it has absorbed the array's integer row.
// K gives the words of row t. X gives the extension words, which the row needs for draws in the tail and for exact
// decisions.
//
// Privacy: the rows of one run are independent of each other and of everything released before, for any records, if
// HMAC-SHA256 and AES-256 are pseudo-random. In that sense the guarantee is computational. Anybody who has the master
// key and the epoch secret can subtract the noise of every release of the epoch.
// Cost: 0.6 µs and two allocations a row (one allocation up to 12 words), nothing per coordinate.
// Source: docs/theory/dp.md.
//
// An Epoch is not safe for concurrent use.
type Epoch struct {
	key    [32]byte
	arrays map[string]*array
	noise  stepNoise
}

// NewEpoch derives the epoch's key. stream and epoch name the task's epoch, nonce is its public random name, and digest
// is the hash of the configuration that its guarantee depends on. secret may be nil only for reference vectors.
func NewEpoch(master, secret *[32]byte, stream string, epoch uint64, nonce [16]byte, digest [32]byte) (*Epoch, error) {
	info := binary.BigEndian.AppendUint64(lengthPrefixed(stream), epoch)
	info = append(info, nonce[:]...)
	info = append(info, digest[:]...)
	var salt []byte
	if secret != nil {
		salt = secret[:]
	}
	e := &Epoch{arrays: make(map[string]*array)}
	e.key = keys.DeriveFor(master, keys.ForEpoch, salt, info)
	return e, nil
}

// Check returns the first 8 bytes of SHA-256("streamdp/ekid\0" ‖ EK). They are stored in the manifest, so that a wrong
// key or secret is detected before any noise is drawn.
func (e *Epoch) Check() (id [8]byte) {
	sum := sha256.Sum256(append([]byte("streamdp/ekid\x00"), e.key[:]...))
	copy(id[:], sum[:])
	return id
}

// UserKey returns the key under which the epoch's task makes tags of persons:
//
//	HKDF(EK, "streamdp/user/v1\0" ‖ lp(task)), its first 16 bytes
//
// It reveals nothing about the noise.
func (e *Epoch) UserKey(task string) (k [16]byte) {
	key := keys.DeriveFor(&e.key, keys.ForUsers, nil, lengthPrefixed(task))
	copy(k[:], key[:])
	clear(key[:])
	return k
}

// Destroy overwrites the keys. Drawing noise from the epoch panics afterwards.
func (e *Epoch) Destroy() {
	clear(e.key[:])
	clear(e.arrays)
	e.arrays = nil
}

// Step returns the noise of step t ≥ 1. Before the call, h must have absorbed the step's number of records. The noise
// keeps h, and changes it when an array is opened.
func (e *Epoch) Step(t uint64, h *Transcript) Noise {
	e.noise = stepNoise{epoch: e, step: t, transcript: h, opening: e.noise.opening + 1}
	return &e.noise
}

type stepNoise struct {
	epoch      *Epoch
	step       uint64
	transcript *Transcript
	opening    uint64 // counts calls of Step
}

// Row implements Noise: it absorbs the integers, then derives the keys.
func (n *stepNoise) Row(name string, hidden []int64) Row {
	a := n.epoch.array(name)
	if a.opened == n.opening {
		panic("dp: noise array " + name + " opened twice in one step")
	}
	a.opened = n.opening
	a.absorb(n.transcript, n.step, hidden)
	return a.row(n.step, n.transcript, len(hidden))
}

// array is an independent sequence of noise rows, one for each step.
type array struct {
	mac      *keyedHash  // HMAC under TK
	absorber cipher.AEAD // GMAC for the integers that rows hide
	current  keyedRow

	// These are fields to avoid allocations: an argument passed through an interface is allocated.
	message []byte   // label ‖ u64be(t) ‖ h
	sum     [32]byte // a key
	tags    [][32]byte
	taggers []tagger
	opened  uint64 // the number of the last call of Step whose noise opened the array
}

// tagger is the scratch space of one goroutine that makes tags.
type tagger struct {
	bytes []byte // integers to be absorbed
	nonce [12]byte
}

func (e *Epoch) array(name string) *array {
	if a := e.arrays[name]; a != nil {
		return a
	}
	if e.arrays == nil {
		panic("dp: noise drawn from a destroyed epoch")
	}
	lp := lengthPrefixed(name)
	taskKey := keys.DeriveFor(&e.key, keys.ForNoise, nil, lp)
	absorbKey := keys.DeriveFor(&e.key, keys.ForAbsorbing, nil, lp)
	block, err := aes.NewCipher(absorbKey[:])
	if err != nil {
		panic(err) // unreachable: 32 bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // unreachable: AES
	}
	a := &array{mac: newKeyedHash(&taskKey), absorber: aead}
	clear(taskKey[:])
	clear(absorbKey[:])
	e.arrays[name] = a
	return a
}

// absorbPiece is the number of integers that one tag covers. Longer rows have several tags, which are computed in
// parallel.
const absorbPiece = 1 << 16

// absorb appends the integer row of a step to the transcript: for each piece, in order, GMAC(piece) ‖ 16 zero bytes,
// under the nonce u32be(piece) ‖ u64be(t). Two different pieces get equal tags with probability (blocks+1)/2¹²⁸. A tag
// leaves the process only inside the transcript's hash.
func (a *array) absorb(h *Transcript, step uint64, hidden []int64) {
	pieces := max(1, (len(hidden)+absorbPiece-1)/absorbPiece)
	for len(a.tags) < pieces {
		a.tags = append(a.tags, [32]byte{}) // the second half of a tag stays zero
	}
	if pieces == 1 { // avoids GOMAXPROCS, which takes a lock
		a.tagEach(a.tagger(0), 0, 1, step, hidden)
	} else {
		workers := min(pieces, runtime.GOMAXPROCS(0))
		a.tagger(workers - 1) // creates all taggers before goroutines use them
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() { a.tagEach(&a.taggers[w], w*pieces/workers, (w+1)*pieces/workers, step, hidden) })
		}
		wg.Wait()
	}
	for i := range pieces {
		h.absorb(&a.tags[i])
	}
}

// tagger returns tagger i. It creates taggers up to i if they do not exist yet.
func (a *array) tagger(i int) *tagger {
	for len(a.taggers) <= i {
		a.taggers = append(a.taggers, tagger{})
	}
	return &a.taggers[i]
}

// putIntegers writes each integer in 8 bytes, little-endian. It writes four at a time, which needs only a third of the
// instructions.
func putIntegers(data []byte, x []int64) {
	for len(x) >= 4 && len(data) >= 32 {
		four, to := (*[4]int64)(x), (*[32]byte)(data)
		binary.LittleEndian.PutUint64(to[:8], uint64(four[0]))
		binary.LittleEndian.PutUint64(to[8:16], uint64(four[1]))
		binary.LittleEndian.PutUint64(to[16:24], uint64(four[2]))
		binary.LittleEndian.PutUint64(to[24:], uint64(four[3]))
		x, data = x[4:], data[32:]
	}
	for j, v := range x {
		binary.LittleEndian.PutUint64(data[8*j:], uint64(v))
	}
}

// tagEach makes the tags of the pieces numbered `from` to `to`−1.
func (a *array) tagEach(t *tagger, from, to int, step uint64, hidden []int64) {
	if n := 8 * min(len(hidden), absorbPiece); cap(t.bytes) < n {
		t.bytes = make([]byte, n)
	}
	for i := from; i < to; i++ {
		piece := hidden[min(i*absorbPiece, len(hidden)):min((i+1)*absorbPiece, len(hidden))]
		data := t.bytes[:8*len(piece)]
		putIntegers(data, piece)
		binary.BigEndian.PutUint32(t.nonce[:], uint32(i))
		binary.BigEndian.PutUint64(t.nonce[4:], step)
		a.absorber.Seal(a.tags[i][:0:16], t.nonce[:], nil, data)
	}
}

// row prepares the keyed row of a step at transcript h.
func (a *array) row(step uint64, h *Transcript, length int) *keyedRow {
	r := &a.current
	r.open(a.keyFor("streamdp/row/v1\x00", step, h), step, length)
	r.source, r.transcript = a, *h
	return r
}

// keyFor returns HMAC(TK, label ‖ u64be(t) ‖ h). The result is valid until the next call.
func (a *array) keyFor(label string, step uint64, h *Transcript) *[32]byte {
	a.message = append(a.message[:0], label...)
	a.message = binary.BigEndian.AppendUint64(a.message, step)
	a.message = append(a.message, h[:]...)
	a.mac.sum(&a.sum, a.message)
	return &a.sum
}

func lengthPrefixed(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}
