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

// release holds the fields of a release that this trainer reads.
type release struct {
	Epoch  uint64
	Step   uint64
	Values map[string]struct{ Data json.RawMessage }
}

// parameters returns the parameters of a release, from JSON numbers or base64 of little-endian float64s.
func (r *release) parameters() ([]float64, error) {
	raw, ok := r.Values["parameters"]
	if !ok {
		return nil, fmt.Errorf("release of step %d contains no parameters", r.Step)
	}
	var x []float64
	if err := json.Unmarshal(raw.Data, &x); err == nil {
		return x, nil
	}
	var text string
	if err := json.Unmarshal(raw.Data, &text); err != nil {
		return nil, fmt.Errorf("release of step %d: %w", r.Step, err)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b)%8 != 0 {
		return nil, fmt.Errorf("release of step %d: its data are not float64s", r.Step)
	}
	for ; len(b) > 0; b = b[8:] {
		x = append(x, math.Float64frombits(binary.LittleEndian.Uint64(b)))
	}
	return x, nil
}

// assembler assembles releases from the messages of an output partition, in order. A message may be repeated with the
// same content. Any other message that is not the next one is an error: a release, or a piece of one, was lost, came
// too early, or does not match its hash.
type assembler struct {
	epoch, step uint64 // of the last complete release

	identity string // of the release that is being assembled
	hash     string
	pieces   [][]byte
	of       int
}

// add takes the next message. If the message completes a new release, add returns it.
func (a *assembler) add(m kafka.Message) (*release, error) {
	identity, i, n := string(m.Key), 1, 1
	chunk, hash := header(m, "streamdp_chunk"), header(m, "streamdp_sha256")
	if chunk != "" {
		var err error
		if i, n, err = parseChunk(chunk); err != nil {
			return nil, fmt.Errorf("message %s: %w", identity, err)
		}
		whole, ok := strings.CutSuffix(identity, "/"+strconv.Itoa(i))
		if !ok {
			return nil, fmt.Errorf("message %s is not piece %d", identity, i)
		}
		identity = whole
	}
	epoch, step, err := parseIdentity(identity)
	if err != nil {
		return nil, err
	}
	if epoch < a.epoch || epoch == a.epoch && step <= a.step {
		return nil, nil // again
	}
	if identity != a.identity {
		if a.identity != "" {
			return nil, fmt.Errorf("release %s: pieces %d to %d of %d are missing", a.identity,
				len(a.pieces)+1, a.of, a.of)
		}
		if chunk == "" {
			return a.whole(identity, epoch, step, m.Value)
		}
		if i != 1 {
			return nil, fmt.Errorf("release %s: piece %d comes before the first", identity, i)
		}
		a.identity, a.hash, a.of, a.pieces = identity, hash, n, nil
	}
	switch have := len(a.pieces); {
	case hash != a.hash || n != a.of:
		return nil, fmt.Errorf("release %s: pieces of two different releases", identity)
	case i <= have && bytes.Equal(a.pieces[i-1], m.Value):
		return nil, nil // again
	case i <= have:
		return nil, fmt.Errorf("release %s: two different pieces %d", identity, i)
	case i > have+1:
		return nil, fmt.Errorf("release %s: piece %d comes after piece %d of %d", identity, i, have, n)
	}
	a.pieces = append(a.pieces, bytes.Clone(m.Value))
	if i < n {
		return nil, nil
	}
	value := bytes.Join(a.pieces, nil)
	if sum := sha256.Sum256(value); hex.EncodeToString(sum[:]) != hash {
		return nil, fmt.Errorf("release %s: its pieces have another hash", identity)
	}
	a.identity, a.pieces = "", nil
	return a.whole(identity, epoch, step, value)
}

// whole parses a complete new release.
func (a *assembler) whole(identity string, epoch, step uint64, value []byte) (*release, error) {
	if epoch > a.epoch && step != 1 || epoch == a.epoch && step != a.step+1 {
		return nil, fmt.Errorf("release %s comes after step %d of epoch %d: releases are missing", identity,
			a.step, a.epoch)
	}
	var r release
	if err := json.Unmarshal(value, &r); err != nil {
		return nil, fmt.Errorf("release %s: %w", identity, err)
	}
	if r.Epoch != epoch || r.Step != step {
		return nil, fmt.Errorf("release %s says that it is step %d of epoch %d", identity, r.Step, r.Epoch)
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
		return 0, 0, fmt.Errorf("%q is not a piece", text)
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
