package stream

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
	"github.com/streamdp/streamdp/internal/osfile"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/core"
)

// GroupImport says what an import brought into a group.
type GroupImport struct {
	Group  string        `json:"group"`
	Shards []ShardImport `json:"shards"`
	Tasks  int           `json:"tasks"`
	Open   int           `json:"open_epochs"` // that go on
}

// ShardImport is what came into a shard.
type ShardImport struct {
	Shard int `json:"shard"`
	Lines int `json:"ledger_lines"`
	Bytes int `json:"state_bytes"`
}

// ImportCluster moves the tasks of a state directory, whose daemon has stopped, into the shards of
// the group of a configuration: the ledger's lines, chained and sealed anew, and of each task what
// its open epoch needs to go on as if nothing had happened, and what its next one needs. No
// instance of the group may run.
//
// Before anything is written to the group the directory's ledger gets a last line, with which no
// daemon runs or charges any more. So the tasks run nowhere or in the group, wherever the import
// is cut off. Then it can be repeated: what a shard has got, it does not get again. At the end the
// secrets and checkpoints in the directory are removed; ledger and manifests stay, for reading.
//
// What is refused is refused before that line: lines about persons; merged epochs where the group
// has assign = "partition"; another master key; sources or tasks that the group's ledgers know; an
// opening that was interrupted, which the next start of the daemon settles; tasks too large for
// their shard.
func ImportCluster(ctx context.Context, c *config.Config, master *[32]byte, dir string) (*GroupImport, error) {
	g, err := newGroupTools(ctx, c, master)
	if err != nil {
		return nil, err
	}
	return newImporting(g, dir).run(ctx)
}

// importing is an import under way.
type importing struct {
	g      *groupTools
	dir    string
	lock   *os.File
	held   *heldLedger
	ledger *ledger // of the directory
	move   EntryMove
	shards map[int]*importedShard
	order  []int // of shards, ascending
	out    *GroupImport
	room   int                   // bytes that a shard may get
	write  func(shard int) error // tests: called before a shard is written; nil: nothing
}

func newImporting(g *groupTools, dir string) *importing {
	return &importing{g: g, dir: filepath.Clean(dir), shards: map[int]*importedShard{}, room: shardStates, out: &GroupImport{Group: g.c.Cluster.Group, Shards: []ShardImport{}}}
}

// importedShard is a shard that something comes into.
type importedShard struct {
	lines   []Entry
	tasks   []core.Task // whose newest epoch read a source of the shard
	holding *shardlog.Holding
	done    bool // it has got everything before
	all     *collected
}

func (i *importing) close() {
	for _, s := range i.shards {
		if s.holding != nil {
			s.holding.Close()
		}
	}
	i.held.release()
	if i.lock != nil {
		osfile.Unlock(i.lock)
		i.lock.Close()
	}
}

func (i *importing) run(ctx context.Context) (*GroupImport, error) {
	defer i.close()
	return i.out, i.all(ctx)
}

func (i *importing) all(ctx context.Context) error {
	if err := i.read(); err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if err := i.divide(); err != nil {
		return err
	}
	if err := kgroup.Check(ctx, i.g.topics()); err != nil {
		return err
	}
	if err := i.g.idle(ctx); err != nil {
		return err
	}
	for _, shard := range i.order {
		if err := i.take(ctx, shard); err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	if i.ledger.moved() == nil {
		move := i.move
		if err := i.ledger.append(Entry{Kind: kindMoved, Move: &move}); err != nil {
			return fmt.Errorf("%w: %w", ErrState, err)
		}
	}
	for _, shard := range i.order {
		s := i.shards[shard]
		if !s.done {
			if i.write != nil {
				if err := i.write(shard); err != nil {
					return err
				}
			}
			if err := s.holding.Update(ctx, s.all.put, nil, s.all.added); err != nil {
				return fmt.Errorf("shard %d: %w: the import is not complete: stop all instances of the group, and repeat it", shard, err)
			}
		}
		i.out.Shards = append(i.out.Shards, ShardImport{shard, len(s.lines), s.all.bytes()})
	}
	if err := i.clear(); err != nil {
		return fmt.Errorf("%w: everything is in the group; the secrets in %s are to be removed: %w", ErrState, i.dir, err)
	}
	return nil
}

// idle refuses a group that has members.
func (g *groupTools) idle(ctx context.Context) error {
	now, err := kgroup.Look(ctx, g.kafka, g.c.Cluster.Group)
	if err != nil {
		return err
	}
	if len(now.Members) > 0 {
		var names []string
		for _, m := range now.Members {
			names = append(names, m.Instance)
		}
		return fmt.Errorf("instances of group %s are running (%s): stop them first; one that was killed counts until cluster.session_timeout has passed", g.c.Cluster.Group, strings.Join(names, ", "))
	}
	return nil
}

// read takes the directory, and reads its ledger.
func (i *importing) read() (err error) {
	if _, err := os.Stat(filepath.Join(i.dir, ledgerName)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no ledger: it is no state directory", i.dir)
	}
	if i.lock, err = lockDir(i.dir); err != nil {
		return err
	}
	disk := fileShard{osDisk{}}
	if i.held, err = holdLedger(disk, i.dir); err != nil {
		return err
	}
	if i.ledger, err = openLedger(disk, i.dir, newLedgerKey(i.g.master)); err != nil {
		return err
	}
	i.ledger.held = i.held
	switch {
	case len(i.ledger.entries) == 0:
		return fmt.Errorf("the ledger of %s is empty: there is nothing to import", i.dir)
	case i.ledger.foreign():
		return fmt.Errorf("the ledger of %s is under key %s, the key file holds key %s", i.dir, i.ledger.keyID, i.ledger.key.id)
	}
	i.move = EntryMove{Group: i.g.c.Cluster.Group, Cluster: i.g.genesis.Cluster}
	if m := i.ledger.moved(); m != nil {
		if m.Move.Copy || m.Move.Group != i.move.Group || m.Move.Cluster != i.move.Cluster {
			return m.refusal()
		}
		i.move.ID = m.Move.ID
		return nil
	}
	id := dp.NewNonce()
	i.move.ID = hex.EncodeToString(id[:])
	return nil
}

// divide says which line and which task comes into which shard.
func (i *importing) divide() error {
	c := i.g.c.Cluster
	key := ""
	for _, e := range i.ledger.entries {
		if e.Key != "" {
			key = e.Key
		}
		switch {
		case e.Kind == kindMoved:
			continue
		case e.Unit != "" || e.Person != nil:
			return fmt.Errorf("the ledger has epochs that protect persons (stream %s): with [cluster] a population has no ledger of its own, so nothing of this directory can be imported", e.Stream)
		case e.Kind == kindImported:
			return fmt.Errorf("%w: the ledger of a directory has lines of an import", ErrState)
		case e.Partition == core.Merged && c.Assign != config.AssignTopic:
			return fmt.Errorf("the ledger has merged epochs (stream %s): they need cluster.assign = %q, so that all partitions of a topic have one ledger", e.Stream, config.AssignTopic)
		}
		if key != "" && key != i.ledger.key.id {
			e = withoutAnchors(e) // its anchors are under a former key, with which alone they prove something
		}
		s := i.shard(c.Shard(e.Topic, e.Partition))
		s.lines = append(s.lines, e)
	}
	for _, t := range i.ledger.tasks() {
		last := i.ledger.newest(t)
		if last == nil {
			continue
		}
		s := i.shard(c.Shard(last.Topic, last.Partition))
		s.tasks = append(s.tasks, t)
		i.out.Tasks++
		if last.Kind == kindOpen {
			i.out.Open++
		}
	}
	slices.Sort(i.order)
	return nil
}

func (i *importing) shard(n int) *importedShard {
	s := i.shards[n]
	if s == nil {
		s = &importedShard{}
		i.shards[n] = s
		i.order = append(i.order, n)
	}
	return s
}

// withoutAnchors returns a line that proves no log.
func withoutAnchors(e Entry) Entry {
	e.Anchor, e.AnchorOffset = "", 0
	e.Parts = slices.Clone(e.Parts)
	for i := range e.Parts {
		e.Parts[i].Anchor, e.Parts[i].AnchorOffset = "", 0
	}
	return e
}

// take acquires a shard, and works out what it is to get.
func (i *importing) take(ctx context.Context, shard int) (err error) {
	s := i.shards[shard]
	o := i.g.options(shard)
	o.Timeout = mostTransaction
	if s.holding, err = shardlog.Acquire(ctx, kgroup.NewLog(i.g.logs(shard)), o); err != nil {
		return err
	}
	s.all = newCollected(s.holding.Values(), s.holding.Lines())
	into, err := ledgerOf(s.all.lines, i.g.master)
	if err != nil {
		return err
	}
	if s.done = into.imported(i.move.ID); s.done {
		return nil
	}
	for _, e := range s.lines {
		if _, known := into.index.tasks[e.Task()]; known {
			return fmt.Errorf("the group has epochs of task %s already: a task has one ledger; a stream of the same name can't come from two directories", e.Task())
		}
		for _, src := range e.sources() {
			if _, known := into.index.sources[src]; known {
				return fmt.Errorf("the group has charged %s/%d already: its limit can't be continued from two ledgers", src.Topic, src.Partition)
			}
		}
	}
	disk, err := newLogShard(s.all)
	if err != nil {
		return err
	}
	// One section for each task: its files, and with the first one all lines.
	l, err := openLedger(disk, "", newLedgerKey(i.g.master))
	if err != nil {
		return err
	}
	lines := func() error {
		move := i.move
		if err := l.append(Entry{Kind: kindImported, Move: &move}); err != nil {
			return err
		}
		for _, e := range s.lines {
			if err := l.copyLine(e); err != nil {
				return err
			}
		}
		return nil
	}
	if err := disk.atomically("/tasks", lines); err != nil {
		return err
	}
	for _, t := range s.tasks {
		to, err := openStore(disk, "/tasks/"+t.String(), nil)
		if err == nil {
			to.logged = true
			err = disk.atomically(to.dir, func() error { return i.bring(t, to, l) })
		}
		if err != nil {
			return fmt.Errorf("task %s: %w", t, err)
		}
	}
	if n := s.all.bytes() + s.all.lineBytes(); n > i.room {
		return fmt.Errorf("the tasks of the shard and their lines of the ledger need %d MiB, and a shard has room for %d: more shards", n>>20, i.room>>20)
	}
	// What a shard gets must be what it can be acquired with.
	again := s.all.all()
	if _, err := newLogShard(again); err != nil {
		return err
	}
	_, err = ledgerOf(again.lines, i.g.master)
	return err
}

// bring writes the files of a task that its shard needs.
func (i *importing) bring(t core.Task, to *store, l *ledger) error {
	from := taskStore(i.dir, t, i.g.master)
	names, err := from.disk.ReadDir(from.dir)
	if errors.Is(err, fs.ErrNotExist) {
		names, err = nil, nil
	}
	if err != nil {
		return err
	}
	file := func(name string) error {
		if !slices.Contains(names, name) {
			return nil
		}
		data, err := from.disk.ReadFile(from.path(name))
		if err != nil {
			return err
		}
		return writeNew(to.disk, to.path(name), data)
	}
	last := i.ledger.newest(t)
	var lives []uint64 // epochs whose secret is there
	for _, e := range i.ledger.undestroyed(t) {
		lives = append(lives, e.Epoch)
	}
	if last.Kind == kindOpen {
		lives = append(lives, last.Epoch)
	}
	for _, n := range lives {
		secret, err := from.secret(n)
		if errors.Is(err, fs.ErrNotExist) && n != last.Epoch {
			continue // gone, and the ledger is to say so
		}
		if err == nil && len(secret) == 0 {
			err = errors.New("it is damaged, or of another key")
		}
		if err != nil {
			return fmt.Errorf("the secret of epoch %d: %w: restore it, or close the epoch", n, err)
		}
		if err := to.keepSecret(n, secret); err != nil {
			return err
		}
		for _, name := range []string{manifestName(n), initialName(n)} {
			if err := file(name); err != nil {
				return err
			}
		}
	}
	var final uint64
	for _, name := range names {
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, "final-"), 10, 64); err == nil && name == finalName(n) {
			final = max(final, n)
		}
	}
	if err := file(finalName(final)); err != nil || last.Kind != kindOpen {
		return err
	}
	const settle = "start the daemon on the directory once more, and stop it with SIGTERM, or close the epoch"
	if slices.Contains(names, openingName(last.Epoch)) {
		return fmt.Errorf("the opening of epoch %d was interrupted: %s", last.Epoch, settle)
	}
	cp, err := from.load()
	if err == nil && (cp == nil || cp.epoch != last.Epoch || !slices.Contains(names, manifestName(last.Epoch))) {
		err = errors.New("its checkpoint or its manifest is not there")
	}
	if err != nil {
		return fmt.Errorf("epoch %d is open: %w: %s", last.Epoch, err, settle)
	}
	if !i.ledger.knows(cp.ledger) {
		return errors.New("the checkpoint was written with a newer ledger: the directory is an old copy; import the newest one")
	}
	defer clear(cp.state)
	cp.ledger = l.headHash()
	to.seq = cp.seq
	return to.commit(cp)
}

// clear removes from the directory what noise could be derived from, and what has exact sums.
func (i *importing) clear() error {
	disk := osDisk{}
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
		s := taskStore(i.dir, t, i.g.master)
		names, err := disk.ReadDir(s.dir)
		if err != nil {
			return err
		}
		private := slices.DeleteFunc(names, func(n string) bool {
			return !strings.HasPrefix(n, secretPrefix) && !strings.HasPrefix(n, "initial-") && !strings.HasPrefix(n, openingPrefix) && !strings.HasSuffix(n, temporarySuffix)
		})
		if err := removeAll(disk, s.dir, private...); err != nil {
			return err
		}
		if err := s.erase(); err != nil {
			return err
		}
	}
	return nil
}
