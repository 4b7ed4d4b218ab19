package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
)

// ManifestFormat is the version of the manifest file.
const ManifestFormat = 1

// Manifest holds everything that an epoch's releases depend on, other than the log and the keys. It is written once,
// when the epoch opens, and never changed. The transcript begins with its hash.
type Manifest struct {
	Format  int      `json:"format"`
	Stream  string   `json:"stream"`
	Epoch   uint64   `json:"epoch"`
	Source           // the input
	Nonce   hexBytes `json:"nonce"`
	KeyID   string   `json:"key_id"`
	EpochID hexBytes `json:"epoch_id"` // dp.Epoch.Check: reveals a wrong key or secret before any noise is drawn

	Config   json.RawMessage   `json:"config"` // config.Stream.Canonical
	Versions map[string]string `json:"versions"`
	Digest   hexBytes          `json:"digest"` // hash of Config and Versions

	Incarnation uint64 `json:"incarnation"`
	Base        int64  `json:"base"` // first offset
	Partitions  int    `json:"partitions"`
	// Parts are the partitions of a merged epoch, ascending. In a merged epoch, Source.Partition is Merged, Incarnation
	// is 0, and Base is the sum of the parts' bases.
	Parts     []Part          `json:"parts,omitempty"`
	Mechanism string          `json:"mechanism"`
	Plan      json.RawMessage `json:"plan"`
	Cost      dp.Cost         `json:"cost"`

	LimitEpsilon         float64 `json:"limit_epsilon"`
	LimitDelta           float64 `json:"limit_delta"`
	ChargedEpsilonAtOpen float64 `json:"charged_epsilon_at_open"`

	// Persons is the guarantee for a person with several records, at the epoch's δ.
	Persons []Person `json:"persons"`

	// Insecure says that all keys follow from a published number, so there is no privacy.
	Insecure bool   `json:"insecure,omitempty"`
	Version  string `json:"version"`

	// Offline says that the epoch belongs to a replay. Such an epoch is never written to disk, and no ledger is charged
	// for it.
	Offline bool `json:"-"`
}

// Task returns the task that the epoch belongs to.
func (m *Manifest) Task() Task { return Task{m.Stream, m.Partition} }

// Encode returns the file.
func (m *Manifest) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // keep the bytes of the configuration, because the digest is over them
	e.SetIndent("", "  ")
	err := e.Encode(m)
	return b.Bytes(), err
}

// ParseManifest parses a file written by [Manifest.Encode]. It checks the digest of the configuration and versions.
func ParseManifest(data []byte) (*Manifest, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var m Manifest
	if err := dec.Decode(&m); err != nil {
		return nil, errors.New("manifest: the file is not a manifest of this version")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("manifest: the file has text after the manifest's end")
	}
	if m.Format != ManifestFormat {
		return nil, fmt.Errorf("manifest: it has format %d, but this version reads only %d", m.Format, ManifestFormat)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, m.Config); err != nil {
		return nil, errors.New("manifest: it has no configuration")
	}
	m.Config = compact.Bytes()
	digest := config.DigestOf(m.Config, m.Versions)
	if len(m.Nonce) != 16 || len(m.EpochID) != 8 || !bytes.Equal(m.Digest, digest[:]) || m.Epoch == 0 || m.Base < 0 ||
		m.Cost.Validate() != nil {
		return nil, errors.New("manifest: damaged")
	}
	if !m.soundParts() {
		return nil, errors.New("manifest: damaged")
	}
	return &m, nil
}

// soundParts reports whether the parts are valid for a merged epoch, or absent in an unmerged one.
func (m *Manifest) soundParts() bool {
	if m.Partition != Merged {
		return len(m.Parts) == 0
	}
	base, before := int64(0), -1
	for _, p := range m.Parts {
		if p.Partition <= before || p.Base < 0 || p.Base > math.MaxInt64-base {
			return false
		}
		base, before = base+p.Base, p.Partition
	}
	return len(m.Parts) > 0 && base == m.Base && m.Incarnation == 0
}

// Numbers returns the partition numbers of a merged epoch, or nil for an unmerged one.
func (m *Manifest) Numbers() (numbers []int) {
	for _, p := range m.Parts {
		numbers = append(numbers, p.Partition)
	}
	return numbers
}

// TranscriptOf returns the first transcript of an epoch with this manifest.
func TranscriptOf(manifestFile []byte) dp.Transcript {
	return dp.NewTranscript(sha256.Sum256(manifestFile))
}

// hexBytes is a byte string that is written in hexadecimal in JSON.
type hexBytes []byte

// MarshalText writes hexadecimal.
func (h hexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads hexadecimal.
func (h *hexBytes) UnmarshalText(text []byte) error {
	b, err := hex.AppendDecode(nil, text)
	if err != nil {
		return errors.New("not hexadecimal")
	}
	*h = b
	return nil
}
