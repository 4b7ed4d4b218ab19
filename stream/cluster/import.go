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

	"github.com/streamdp/streamdp/config"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
	"github.com/streamdp/streamdp/internal/keys"
	"github.com/streamdp/streamdp/internal/osfile"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Imported is the result of an import into a group.
type Imported struct {
	Group  string        `json:"group"`
	Shards []ShardImport `json:"shards"`
	Tasks  int           `json:"tasks"`
	Open   int           `json:"open_epochs"` // number of open epochs; they continue in the group
}

// ShardImport is what was imported into one shard.
type ShardImport struct {
	Shard int `json:"shard"`
	Lines int `json:"ledger_lines"`
	Bytes int `json:"state_bytes"`
}

// Import moves the tasks of a state directory into the shards of a configuration's group. The directory's daemon must
// have stopped, and no instance of the group may run. Import copies the ledger's lines, chained and sealed again. For
// each task it copies the files with which its open epoch continues exactly where it was, and the files that its next
// epoch needs.
//
// Before Import writes to the group, it appends a last line to the directory's ledger. After this line no daemon runs
// on the directory, and nothing is charged to its ledger. So wherever the import is interrupted, the tasks run either
// nowhere or in the group. An interrupted import can be repeated: it does not write again the data that a shard already
// received. At the end, Import removes secrets and checkpoints from the directory. The ledger and manifests remain
// there for reading.
//
// Before Import writes that line, it returns an error in the following cases: the ledger has lines about persons; it
// has merged epochs and the group has assign = "partition"; it has another master key; the group's ledgers already have
// one of its sources or tasks; an opening was interrupted (the daemon completes it at its next start); tasks are too
// large for their shard.
func Import(ctx context.Context, c *config.Config, master *[32]byte, dir string) (*Imported, error) {
	g, err := newGroupTools(ctx, c, master)
	if err != nil {
		return nil, err
	}
	return newImporting(g, dir).Run(ctx)
}

// importing is an import in progress.
type importing struct {
	G      *groupTools
	dir    string
	lock   *os.File
	held   *ledger.Held
	Ledger *ledger.Ledger // the directory's ledger
	move   ledger.EntryMove
	Shards map[int]*importedShard
	Order  []int // shard numbers, ascending
	out    *Imported
	Room   int                   // maximum size of a shard in bytes
	Write  func(shard int) error // for tests: called before a shard is written; nil: none
}

func newImporting(g *groupTools, dir string) *importing {
	return &importing{G: g, dir: filepath.Clean(dir), Shards: map[int]*importedShard{}, Room: epoch.ShardStates,
		out: &Imported{Group: g.C.Cluster.Group, Shards: []ShardImport{}}}
}

// importedShard is a shard that receives a part of the import.
type importedShard struct {
	Lines   []ledger.Entry
	tasks   []core.Task // tasks whose newest epoch reads a source of the shard
	holding *shardlog.Holding
	done    bool // an earlier attempt wrote everything
	All     *bufferedHolding
}

// Close gives up the shards and the directory.
func (i *importing) Close() {
	for _, s := range i.Shards {
		if s.holding != nil {
			s.holding.Close()
		}
	}
	i.held.Release()
	if i.lock != nil {
		osfile.Unlock(i.lock)
		i.lock.Close()
	}
}

// Run does the whole import.
func (i *importing) Run(ctx context.Context) (*Imported, error) {
	defer i.Close()
	return i.out, i.all(ctx)
}

func (i *importing) all(ctx context.Context) error {
	if err := i.Read(); err != nil {
		return fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	if err := i.Divide(); err != nil {
		return err
	}
	if err := kgroup.Check(ctx, i.G.topics()); err != nil {
		return err
	}
	if err := i.G.idle(ctx); err != nil {
		return err
	}
	for _, shard := range i.Order {
		if err := i.take(ctx, shard); err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	if i.Ledger.Moved() == nil {
		if err := i.Ledger.MoveAway(i.move); err != nil {
			return fmt.Errorf("%w: %w", failure.ErrState, err)
		}
	}
	for _, shard := range i.Order {
		s := i.Shards[shard]
		if !s.done {
			if i.Write != nil {
				if err := i.Write(shard); err != nil {
					return err
				}
			}
			if err := s.holding.Update(ctx, s.All.put, nil, s.All.added); err != nil {
				return fmt.Errorf(
					"shard %d: %w: the import is incomplete: stop all instances of the group, then repeat the "+
						"import", shard,
					err)
			}
		}
		i.out.Shards = append(i.out.Shards, ShardImport{shard, len(s.Lines), s.All.Bytes()})
	}
	if err := i.clear(); err != nil {
		return fmt.Errorf("%w: everything was imported, but the secrets in %s could not be removed: remove them: %w",
			failure.ErrState, i.dir, err)
	}
	return nil
}

// idle refuses a group that has members.
func (g *groupTools) idle(ctx context.Context) error {
	now, err := kgroup.Look(ctx, g.kafka, g.C.Cluster.Group)
	if err != nil {
		return err
	}
	if len(now.Members) > 0 {
		var names []string
		for _, m := range now.Members {
			names = append(names, m.Instance)
		}
		return fmt.Errorf(
			"instances of group %s are running (%s): stop them first; one that was killed counts as running until "+
				"cluster.session_timeout has passed", g.C.Cluster.Group, strings.Join(names, ", "))
	}
	return nil
}

// Read locks the directory and reads its ledger.
func (i *importing) Read() (err error) {
	if _, err := os.Stat(filepath.Join(i.dir, ledger.FileName)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no ledger, so it is not a state directory", i.dir)
	}
	if i.lock, err = state.Lock(i.dir); err != nil {
		return err
	}
	disk := state.FileShard{Disk: state.OS{}}
	if i.held, err = ledger.Hold(disk, i.dir); err != nil {
		return err
	}
	if i.Ledger, err = ledger.Open(disk, i.dir, ledger.NewKey(i.G.Master)); err != nil {
		return err
	}
	i.Ledger.Held = i.held
	switch {
	case len(i.Ledger.Entries) == 0:
		return fmt.Errorf("the ledger of %s is empty: there is nothing to import", i.dir)
	case i.Ledger.Foreign():
		return fmt.Errorf("the ledger of %s is authenticated with key %s, but the key file holds key %s",
			i.dir, i.Ledger.KeyID,
			i.Ledger.Key.ID)
	}
	i.move = ledger.EntryMove{Group: i.G.C.Cluster.Group, Cluster: i.G.Genesis.Cluster}
	if m := i.Ledger.Moved(); m != nil {
		if m.Move.Copy || m.Move.Group != i.move.Group || m.Move.Cluster != i.move.Cluster {
			return m.Refusal()
		}
		i.move.ID = m.Move.ID
		return nil
	}
	id := keys.NewNonce()
	i.move.ID = hex.EncodeToString(id[:])
	return nil
}

// Divide determines the shard of each line and of each task.
func (i *importing) Divide() error {
	c := i.G.C.Cluster
	key := ""
	for _, e := range i.Ledger.Entries {
		if e.Key != "" {
			key = e.Key
		}
		switch {
		case e.Kind == ledger.KindMoved:
			continue
		case e.Unit != "" || e.Person != nil:
			return fmt.Errorf(
				"cannot import the ledger: it has epochs that protect persons (stream %s), and [cluster] does not "+
					"support ledgers of populations", e.Stream)
		case e.Kind == ledger.KindImported:
			return fmt.Errorf("%w: the directory's ledger has lines of an import, which only the ledger of a group "+
				"can have", failure.ErrState)
		case e.Partition == core.Merged && c.Assign != config.AssignTopic:
			return fmt.Errorf(
				"the ledger has merged epochs (stream %s): set cluster.assign = %q, so that all partitions of a "+
					"topic have one ledger", e.Stream, config.AssignTopic)
		}
		if key != "" && key != i.Ledger.Key.ID {
			e = withoutAnchors(e) // Its anchors could be verified only with the former key, so drop them.
		}
		s := i.shard(c.Shard(e.Topic, e.Partition))
		s.Lines = append(s.Lines, e)
	}
	for _, t := range i.Ledger.Tasks() {
		last := i.Ledger.Newest(t)
		if last == nil {
			continue
		}
		s := i.shard(c.Shard(last.Topic, last.Partition))
		s.tasks = append(s.tasks, t)
		i.out.Tasks++
		if last.Kind == ledger.KindOpen {
			i.out.Open++
		}
	}
	slices.Sort(i.Order)
	return nil
}

func (i *importing) shard(n int) *importedShard {
	s := i.Shards[n]
	if s == nil {
		s = &importedShard{}
		i.Shards[n] = s
		i.Order = append(i.Order, n)
	}
	return s
}

// withoutAnchors returns a line without its anchors.
func withoutAnchors(e ledger.Entry) ledger.Entry {
	e.Anchor, e.AnchorOffset = "", 0
	e.Parts = slices.Clone(e.Parts)
	for i := range e.Parts {
		e.Parts[i].Anchor, e.Parts[i].AnchorOffset = "", 0
	}
	return e
}

// take acquires a shard, and determines what must be written to it.
func (i *importing) take(ctx context.Context, shard int) (err error) {
	s := i.Shards[shard]
	o := i.G.options(shard)
	o.Timeout = mostTransaction
	if s.holding, err = shardlog.Acquire(ctx, kgroup.NewLog(i.G.logs(shard)), o); err != nil {
		return err
	}
	s.All = newBufferedHolding(s.holding.Values(), s.holding.Lines())
	into, err := ledgerOf(s.All.lines, i.G.Master)
	if err != nil {
		return err
	}
	if s.done = into.Imported(i.move.ID); s.done {
		return nil
	}
	for _, e := range s.Lines {
		if into.HasTask(e.Task()) {
			return fmt.Errorf(
				"the group already has epochs of task %s: a task has only one ledger, so a stream of the same name "+
					"cannot come from two directories", e.Task())
		}
		for _, src := range e.Sources() {
			if into.HasSource(src) {
				return fmt.Errorf("the group has already charged epochs over %s/%d: the limit of a partition cannot "+
					"be enforced by two ledgers",
					src.Topic, src.Partition)
			}
		}
	}
	disk, err := NewShard(s.All)
	if err != nil {
		return err
	}
	// There is one section (call of Atomically) for each task. It writes the task's files; the first section also
	// writes all lines.
	l, err := ledger.Open(disk, "", ledger.NewKey(i.G.Master))
	if err != nil {
		return err
	}
	if err := disk.Atomically("/tasks", func() error { return l.Import(i.move, s.Lines) }); err != nil {
		return err
	}
	for _, t := range s.tasks {
		to, err := state.Open(disk, "/tasks/"+t.String(), nil)
		if err == nil {
			err = disk.Atomically(to.Dir, func() error { return i.bring(t, to, l) })
		}
		if err != nil {
			return fmt.Errorf("task %s: %w", t, err)
		}
	}
	if n := s.All.Bytes() + s.All.lineBytes(); n > i.Room {
		return fmt.Errorf(
			"the tasks of the shard and their ledger lines need %d MiB, but a shard has room for %d MiB: use a "+
				"group with more shards", n>>20, i.Room>>20)
	}
	// Check that the shard can be acquired with what will be written to it.
	again := s.All.all()
	if _, err := NewShard(again); err != nil {
		return err
	}
	_, err = ledgerOf(again.lines, i.G.Master)
	return err
}

// bring writes the files of a task that its shard needs.
func (i *importing) bring(t core.Task, to *state.Store, l *ledger.Ledger) error {
	from := state.TaskStore(i.dir, t, i.G.Master)
	// bring copies a file of an epoch, if it exists.
	bring := func(n uint64, read func(uint64) ([]byte, error), put func(uint64, []byte) error) error {
		data, err := read(n)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return put(n, data)
	}
	last := i.Ledger.Newest(t)
	var lives []uint64 // epochs whose secret is not destroyed
	for _, e := range i.Ledger.Undestroyed(t) {
		lives = append(lives, e.Epoch)
	}
	if last.Kind == ledger.KindOpen {
		lives = append(lives, last.Epoch)
	}
	for _, n := range lives {
		secret, err := from.Secret(n)
		if errors.Is(err, fs.ErrNotExist) && n != last.Epoch {
			continue // the secret is gone, and the ledger must record that
		}
		if err == nil && len(secret) == 0 {
			err = errors.New("it is damaged, or encrypted with another key")
		}
		if err != nil {
			return fmt.Errorf("the secret of epoch %d: %w: restore it, or close the epoch", n, err)
		}
		if err := to.PutSecret(n, secret); err != nil {
			return err
		}
		if err := bring(n, from.Manifest, to.PutManifest); err != nil {
			return err
		}
		if err := bring(n, from.Initial, to.PutInitial); err != nil {
			return err
		}
	}
	final, data, err := from.LastFinal()
	switch {
	case errors.Is(err, fs.ErrNotExist): // the task has no files
	case err != nil:
		return err
	case final > 0:
		if err := to.PutFinal(final, data); err != nil {
			return err
		}
	}
	if last.Kind != ledger.KindOpen {
		return nil
	}
	const settle = "start the daemon on the directory again and stop it with SIGTERM, or close the epoch"
	if opening, err := from.Marked(last.Epoch); err != nil {
		return err
	} else if opening {
		return fmt.Errorf("the opening of epoch %d was interrupted: %s", last.Epoch, settle)
	}
	cp, err := from.Load()
	if err == nil {
		_, noManifest := from.Manifest(last.Epoch)
		if cp == nil || cp.Epoch != last.Epoch || errors.Is(noManifest, fs.ErrNotExist) {
			err = errors.New("its checkpoint or its manifest is missing")
		}
	}
	if err != nil {
		return fmt.Errorf("epoch %d is open: %w: %s", last.Epoch, err, settle)
	}
	if !i.Ledger.Knows(cp.Ledger) {
		return errors.New(
			"the checkpoint was written with a newer ledger: the directory is an old copy; import the newest one")
	}
	defer clear(cp.State)
	cp.Ledger = l.HeadHash()
	return to.CommitOf(cp)
}

// clear removes from the directory all files from which noise could be derived, and all files with exact sums.
func (i *importing) clear() error {
	disk := state.OS{}
	tasks, err := disk.ReadDir(filepath.Join(i.dir, "tasks"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range tasks {
		t, ok := core.ParseTask(name)
		if !ok {
			continue
		}
		if err := state.TaskStore(i.dir, t, i.G.Master).ErasePrivate(); err != nil {
			return err
		}
	}
	return nil
}
