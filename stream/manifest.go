package stream

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"streamdp/config"
	"streamdp/dp"
)

// manifestFormat is the version of the manifest file.
const manifestFormat = 1

// manifest is everything that an epoch's releases are a function of, beside
// the log and the keys. It is written once, when the epoch opens, and never
// changed; its hash is the first thing the transcript holds.
type manifest struct {
	Format  int      `json:"format"`
	Stream  string   `json:"stream"`
	Epoch   uint64   `json:"epoch"`
	Source           // input
	Nonce   hexBytes `json:"nonce"`
	KeyID   string   `json:"key_id"`
	EpochID hexBytes `json:"epoch_id"` // dp.Epoch.Check: tells a wrong key or secret before any noise

	Config   json.RawMessage   `json:"config"` // config.Stream.Canonical
	Versions map[string]string `json:"versions"`
	Digest   hexBytes          `json:"digest"` // of both

	Incarnation uint64          `json:"incarnation"`
	Base        int64           `json:"base"` // first offset
	Partitions  int             `json:"partitions"`
	Mechanism   string          `json:"mechanism"`
	Plan        json.RawMessage `json:"plan"`
	Cost        dp.Cost         `json:"cost"`

	LimitEpsilon         float64 `json:"limit_epsilon"`
	LimitDelta           float64 `json:"limit_delta"`
	ChargedEpsilonAtOpen float64 `json:"charged_epsilon_at_open"`

	// Persons are the ε, at the epoch's δ, of persons with several records.
	Persons []Person `json:"persons"`

	// Insecure says that all keys follow from a published number.
	Insecure bool   `json:"insecure,omitempty"`
	Version  string `json:"version"`

	offline bool // of a Replay: never written, and charged in no ledger
}

// task returns the task that the manifest's epoch is of.
func (m *manifest) task() Task { return Task{m.Stream, m.Partition} }

// encode returns the file.
func (m *manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the digest is over the configuration's very bytes
	e.SetIndent("", "  ")
	err := e.Encode(m)
	return b.Bytes(), err
}

// parseManifest reads a file that encode wrote and checks that it agrees with
// itself.
func parseManifest(data []byte) (*manifest, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var m manifest
	if err := dec.Decode(&m); err != nil {
		return nil, errors.New("manifest: not a manifest of this version")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("manifest: text behind its end")
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("manifest: format %d, this version reads %d", m.Format, manifestFormat)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, m.Config); err != nil {
		return nil, errors.New("manifest: no configuration in it")
	}
	m.Config = compact.Bytes()
	digest := config.DigestOf(m.Config, m.Versions)
	if len(m.Nonce) != 16 || len(m.EpochID) != 8 || !bytes.Equal(m.Digest, digest[:]) || m.Epoch == 0 || m.Base < 0 {
		return nil, errors.New("manifest: damaged")
	}
	return &m, nil
}

// transcript returns the transcript that the epoch starts with.
func transcriptOf(manifestFile []byte) dp.Transcript {
	return dp.NewTranscript(sha256.Sum256(manifestFile))
}

// hexBytes is a byte string that JSON has in hexadecimal.
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
