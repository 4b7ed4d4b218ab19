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

// Exported says what an export copied.
type Exported struct {
	Dir    string `json:"dir"`
	Lines  int    `json:"ledger_lines"`
	Epochs int    `json:"epochs"`
	Files  int    `json:"files"`
}

// Export writes a copy of the ledgers of all shards of a group, and of their manifests, into
// a new directory, as a daemon without [cluster] has them: one ledger, whose lines are those of all
// shards by their times, chained and sealed anew. Instances may run meanwhile.
//
// The copy is for reading: for commands that show ledgers and epochs and, with secrets, for those
// that compute releases again. Its ledger ends with a line with which no daemon runs or charges.
// It has no checkpoints, so nothing can go on from it. With secrets and the master key, one can
// subtract the noise from the releases of epochs that are open.
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
	text, l,
		err := oneLedger(ledgers, master,
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
	// The ledger comes last: without it the directory is damaged, and nothing starts on it.
	if err := state.WriteNew(disk, filepath.Join(dir, ledger.FileName), text); err != nil {
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	return &Exported{dir, len(l.Entries), len(l.EpochList()), len(files)}, nil
}

// readable reports whether a copy has a value: what commands read, of which secrets and the
// parameters that an epoch began with only where they are wanted.
func readable(key string, secrets bool) bool {
	task, name, ok := strings.Cut(key, "/")
	if !ok || task == "" || strings.ContainsAny(name, "/#\\") {
		return false
	}
	return strings.HasPrefix(name, state.ManifestPrefix) || strings.HasPrefix(name, state.FinalPrefix) ||
		secrets && (strings.HasPrefix(name, state.SecretPrefix) || strings.HasPrefix(name, state.InitialPrefix))
}

// oneLedger chains the lines of several ledgers, each in its order and all by their times, with a
// last line.
func oneLedger(ledgers []*ledger.Ledger, master *[32]byte, last ledger.EntryMove) (text []byte, l *ledger.Ledger,
	err error) {
	type line struct {
		ledger.Entry
		at time.Time // no earlier than that of the line before in its ledger
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
