package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/segmentio/kafka-go"
)

// release holds the fields of a release that the trainer needs.
type release struct {
	Epoch  uint64
	Step   uint64
	Values map[string]struct{ Data json.RawMessage }
}

// parameters returns the parameters of a release: JSON numbers, or base64 of little-endian float64.
func (r *release) parameters() ([]float64, error) {
	raw, ok := r.Values["parameters"]
	if !ok {
		return nil, fmt.Errorf("the release of step %d has no parameters", r.Step)
	}
	var x []float64
	if err := json.Unmarshal(raw.Data, &x); err == nil {
		return x, nil
	}
	var text string
	if err := json.Unmarshal(raw.Data, &text); err != nil {
		return nil, fmt.Errorf("cannot decode the parameters of step %d: %w", r.Step, err)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b)%8 != 0 {
		return nil, fmt.Errorf("the parameters of step %d are not a list of float64", r.Step)
	}
	for ; len(b) > 0; b = b[8:] {
		x = append(x, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return x, nil
}

// assembler reads the messages of an output partition in order and puts releases together from their pieces. It ignores
// a repeated message with the same content. These are errors: a missing release or piece, one that comes too early, and
// a release whose hash is wrong.
type assembler struct {
	epoch, step uint64 // epoch and step of the last complete release

	identity string // identity of the release whose pieces are being read
	hash     string
	pieces   [][]byte
	of       int
}

// add takes the next message. It returns a release if the message completes one that is new.
func (a *assembler) add(m kafka.Message) (*release, error) {
	identity, i, n := string(m.Key), 1, 1
	chunk, hash := header(m, "streamdp_chunk"), header(m, "streamdp_sha256")
	if chunk != "" {
		var err error
		if i, n, err = parseChunk(chunk); err != nil {
			return nil, fmt.Errorf("message %s: %w", identity, err)
		}
		release, ok := strings.CutSuffix(identity, "/"+strconv.Itoa(i))
		if !ok {
			return nil, fmt.Errorf("message %s does not have the key of piece %d", identity, i)
		}
		identity = release
	}
	epoch, step, err := parseIdentity(identity)
	if err != nil {
		return nil, err
	}
	if epoch < a.epoch || epoch == a.epoch && step <= a.step {
		return nil, nil // a repeated message
	}
	if identity != a.identity {
		if a.identity != "" {
			return nil, fmt.Errorf("release %s lacks pieces %d to %d of %d", a.identity,
				len(a.pieces)+1, a.of, a.of)
		}
		if chunk == "" {
			return a.complete(identity, epoch, step, m.Value)
		}
		if i != 1 {
			return nil, fmt.Errorf("release %s: piece %d comes before piece 1", identity, i)
		}
		a.identity, a.hash, a.of, a.pieces = identity, hash, n, nil
	}
	switch have := len(a.pieces); {
	case hash != a.hash || n != a.of:
		return nil, fmt.Errorf("release %s has pieces of two different releases", identity)
	case i <= have && bytes.Equal(a.pieces[i-1], m.Value):
		return nil, nil // a repeated piece
	case i <= have:
		return nil, fmt.Errorf("release %s has two different pieces %d", identity, i)
	case i > have+1:
		return nil, fmt.Errorf("release %s: piece %d comes after piece %d of %d", identity, i, have, n)
	}
	a.pieces = append(a.pieces, bytes.Clone(m.Value))
	if i < n {
		return nil, nil
	}
	value := bytes.Join(a.pieces, nil)
	if sum := sha256.Sum256(value); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("release %s does not have the hash in its headers", identity)
	}
	a.identity, a.pieces = "", nil
	return a.complete(identity, epoch, step, value)
}

// complete decodes a release that is complete and new.
func (a *assembler) complete(identity string, epoch, step uint64, value []byte) (*release, error) {
	if epoch > a.epoch && step != 1 || epoch == a.epoch && step != a.step+1 {
		return nil, fmt.Errorf("releases are missing: %s follows step %d of epoch %d", identity,
			a.step, a.epoch)
	}
	var r release
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, fmt.Errorf("cannot decode release %s: %w", identity, err)
	}
	if r.Epoch != epoch || r.Step != step {
		return nil, fmt.Errorf("release %s contains step %d of epoch %d", identity, r.Step, r.Epoch)
	}
	a.epoch, a.step = epoch, step
	return &r, nil
}

// parseIdentity reads STREAM/PARTITION/EPOCH/STEP.
func parseIdentity(identity string) (epoch, step uint64, err error) {
	parts := strings.Split(identity, "/")
	if len(parts) == 4 {
		if epoch, err = strconv.ParseUint(parts[2], 10, 64); err == nil {
			step, err = strconv.ParseUint(parts[3], 10, 64)
		}
	}
	if len(parts) != 4 || err != nil || epoch == 0 || step == 0 {
		return 0, 0, fmt.Errorf("message %q is not a release", identity)
	}
	return epoch, step, nil
}

// parseChunk reads "i/n".
func parseChunk(text string) (i, n int, err error) {
	first, second, _ := strings.Cut(text, "/")
	if i, err = strconv.Atoi(first); err == nil {
		n, err = strconv.Atoi(second)
	}
	if err != nil || i < 1 || n < i {
		return 0, 0, fmt.Errorf("%q does not number a piece", text)
	}
	return i, n, nil
}

func header(m kafka.Message, key string) string {
	for _, h := range m.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}
