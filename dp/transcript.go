package dp

import (
	"crypto/sha256"
	"encoding/binary"
)

// Transcript is the running hash of everything that an epoch's noise depends on: the manifest, the number of records of
// each step, and every integer row before noise is added. The keys of a noise row are derived from it. So if one bit
// differs in a row's integers, or in the integers of an earlier row, the row gets independent noise.
//
// The transcript is a function of raw data. Keep it secret: store it in the checkpoint only.
type Transcript [32]byte

// NewTranscript starts the transcript of an epoch from the hash of its
// manifest.
func NewTranscript(manifest [32]byte) Transcript {
	return sha256.Sum256(append([]byte("streamdp/transcript/v1\x00"), manifest[:]...))
}

// AbsorbRecords absorbs the number of committed records of a step. Every step absorbs it first.
func (h *Transcript) AbsorbRecords(records uint64) {
	var x [32]byte
	binary.BigEndian.PutUint64(x[:], records)
	h.absorb(&x)
}

// absorb sets h to SHA-256(h ‖ x).
func (h *Transcript) absorb(x *[32]byte) {
	*h = hash64((*[32]byte)(h), x)
}
