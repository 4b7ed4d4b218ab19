package recovery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// exportFormat is the version of an exported epoch.
const exportFormat = "streamdp.epoch.v1"

// Export is an epoch in one file. It has everything on which the epoch's releases depend, except the log and the master
// key. It also has the ledger in which the epoch is charged. Anybody who has Secret and the master key can subtract the
// noise from the releases.
type Export struct {
	Format string `json:"format"`
	// Manifest is the text of the manifest file. The noise depends on its exact bytes.
	Manifest string `json:"manifest"`
	// Initial has the packed initial parameters of the epoch, if its mechanism learns parameters. They were computed
	// from earlier releases, or read from a file.
	Initial []byte `json:"initial,omitempty"`
	// Ledger has all lines of the ledger, so that their chain of hashes can be checked.
	Ledger []string `json:"ledger"`
	Secret []byte   `json:"secret,omitempty"`
}

// Encode returns the file.
func (x *Export) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(x)
	return b.Bytes(), err
}

// ParseExport parses a file that Encode wrote.
func ParseExport(data []byte) (*Export, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var x Export
	if err := dec.Decode(&x); err != nil || x.Format != exportFormat {
		return nil, errors.New("not an epoch exported by this version")
	}
	if _, err := core.ParseManifest([]byte(x.Manifest)); err != nil {
		return nil, err
	}
	if n := len(x.Secret); n != 0 && n != 32 {
		return nil, errors.New("the secret must have 32 bytes")
	}
	return &x, nil
}

// opening returns the ledger's opening entry of the exported epoch. If key is not nil, it checks the MAC of each line.
func (x *Export) opening(key *ledger.Key) (*ledger.Entry, error) {
	m, err := core.ParseManifest([]byte(x.Manifest))
	if err != nil {
		return nil, err
	}
	var file []byte
	for _, line := range x.Ledger {
		file = append(append(file, line...), '\n')
	}
	l, err := ledger.Parse(file, key)
	if err != nil {
		return nil, err
	}
	for i := range l.Entries {
		if e := &l.Entries[i]; e.Kind == ledger.KindOpen && e.Task() == m.Task() && e.Epoch == m.Epoch {
			return e, nil
		}
	}
	return nil, fmt.Errorf("the ledger in the file does not charge epoch %d of %s", m.Epoch, m.Task())
}

// ExportEpoch returns an epoch of a state directory, on which a daemon may be running. Epoch 0 means the task's newest
// epoch. key is the master key; it decrypts an encrypted secret.
//
// Errors: ErrState if the ledger or the manifest is damaged, or if withSecret is set and the secret is destroyed.
func ExportEpoch(cfg *config.Config, key *[32]byte, t core.Task, n uint64, withSecret bool) (*Export, error) {
	l, err := ledger.Read(cfg.State.Dir)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		if last := l.Newest(t); last != nil {
			n = last.Epoch
		}
	}
	opened := l.Opening(t, n)
	if opened == nil {
		return nil, fmt.Errorf("the ledger of %s has no epoch of task %s, or none with the given number",
			cfg.State.Dir, t)
	}
	s := state.TaskStore(cfg.State.Dir, t, key)
	data, err := state.OS{}.ReadFile(cfg.State.Dir + "/" + ledger.FileName)
	if err != nil {
		return nil, err
	}
	x := &Export{Format: exportFormat}
	for _, line := range slices.Collect(bytes.Lines(data[:ledger.CompleteLines(data)])) {
		x.Ledger = append(x.Ledger, string(bytes.TrimSuffix(line, []byte("\n"))))
	}
	file, err := s.Manifest(n)
	if err != nil {
		return nil, fmt.Errorf("%w: manifest of epoch %d: %w", failure.ErrState, n, err)
	}
	x.Manifest = string(file)
	if _, err := epoch.ManifestOf(t, opened, file); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if x.Initial, err = s.Initial(n); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if withSecret {
		if x.Secret, err = s.Secret(n); err == nil && len(x.Secret) != 32 {
			return nil, fmt.Errorf("%w: the secret of epoch %d of %s is damaged, or encrypted with another key",
				failure.ErrState, n, t)
		} else if errors.Is(err, fs.ErrNotExist) {
			return nil, noSecret(t, n)
		} else if err != nil {
			return nil, err
		}
	}
	return x, nil
}

// noSecret returns the error for an epoch whose releases cannot be recomputed because its secret is destroyed.
func noSecret(t core.Task, epoch uint64) error {
	return fmt.Errorf(
		"%w: the secret of epoch %d of %s no longer exists: it was destroyed after the epoch was closed, see "+
			"state.epoch_secret_retention; so the epoch's noise cannot be recomputed", failure.ErrState, epoch, t)
}
