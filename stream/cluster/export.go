package cluster

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Exported is the result of an export.
type Exported struct {
	Dir    string `json:"dir"`
	Lines  int    `json:"ledger_lines"`
	Epochs int    `json:"epochs"`
	Files  int    `json:"files"`
}

// Export copies the ledgers of all shards of a group, and their manifests, into a new directory. The copy has the form
// that a daemon without the table [cluster] uses: one ledger with the lines of all shards ordered by time, chained and
// sealed again. Instances may run meanwhile.
//
// The copy is read-only: it is for commands that show ledgers and epochs or, if secrets are included, recompute
// releases. The last line of its ledger prevents daemons from running on the copy and from charging anything. The copy
// has no checkpoints, so no epoch can continue from it. Anybody who has the secrets and the master key can subtract the
// noise from the releases of open epochs.
func Export(ctx context.Context, c *config.Config, master *[32]byte, dir string, secrets bool) (*Exported, error) {
	g, err := newGroupTools(ctx, c, master)
	if err != nil {
		return nil, err
	}
	dir = filepath.Clean(dir)
	if names, err := os.ReadDir(dir); err == nil && len(names) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s must be a new directory, or an empty one", failure.ErrState, dir)
	}
	var mu sync.Mutex
	ledgers := make([]*ledger.Ledger, c.Cluster.Shards)
	files := map[string][]byte{}
	if err := shardsOf(c, func(shard int) (err error) {
		v, err := g.read(ctx, shard)
		if err != nil {
			return err
		}
		if ledgers[shard], err = ledgerOf(v.Lines, master); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for key, value := range v.Values {
			if readable(key, secrets) {
				files[key] = value.Data
			}
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	id := keys.NewNonce()
	text, l, err := oneLedger(ledgers, master,
		ledger.EntryMove{ID: hex.EncodeToString(id[:]), Group: c.Cluster.Group, Cluster: g.Genesis.Cluster, Copy: true})
	if err != nil {
		return nil, err
	}
	var disk state.OS
	if err := disk.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	for key, data := range files {
		path := filepath.Join(dir, "tasks", filepath.FromSlash(key))
		err := disk.MkdirAll(filepath.Dir(path))
		if err == nil {
			err = state.WriteNew(disk, path, data)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
		}
	}
	// The ledger is written last: until then the directory counts as damaged, and nothing starts on it.
	if err := state.WriteNew(disk, filepath.Join(dir, ledger.FileName), text); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	return &Exported{dir, len(l.Entries), len(l.EpochList()), len(files)}, nil
}

// readable reports whether a value is included in a copy. All values that commands read are included, but secrets and
// initial parameters only if secrets is true.
func readable(key string, secrets bool) bool {
	task, name, ok := strings.Cut(key, "/")
	if !ok || task == "" || strings.ContainsAny(name, "/#\\") {
		return false
	}
	return strings.HasPrefix(name, state.ManifestPrefix) || strings.HasPrefix(name, state.FinalPrefix) ||
		secrets && (strings.HasPrefix(name, state.SecretPrefix) || strings.HasPrefix(name, state.InitialPrefix))
}

// oneLedger chains the lines of several ledgers, ordered by time but keeping the order within each ledger, and appends
// a last line.
func oneLedger(ledgers []*ledger.Ledger, master *[32]byte, last ledger.EntryMove) (text []byte, l *ledger.Ledger,
	err error) {
	type line struct {
		ledger.Entry
		at time.Time // time of the line, or of an earlier line of its ledger if that time is later
	}
	var all []line
	for _, l := range ledgers {
		var at time.Time
		for _, e := range l.Entries {
			if e.Time.After(at) {
				at = e.Time
			}
			if e.Kind != ledger.KindImported {
				all = append(all, line{e, at})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return a.at.Compare(b.at) })
	disk, err := NewShard(newBufferedHolding(map[string]shardlog.Value{}, nil))
	if err != nil {
		return nil, nil, err
	}
	if l, err = ledger.Open(disk, "", ledger.NewKey(master)); err != nil {
		return nil, nil, err
	}
	entries := make([]ledger.Entry, len(all))
	for i, e := range all {
		entries[i] = e.Entry
	}
	if err = disk.Atomically("/tasks", func() error { return l.CopyAndMove(entries, last) }); err != nil {
		return nil, nil, err
	}
	text, err = disk.ReadFile(atLedger)
	return text, l, err
}
