package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/state"
)

// Holding is the part of [shardlog.Holding] that a Shard uses.
type Holding interface {
	Values() map[string]shardlog.Value
	Lines() [][]byte
	Update(ctx context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error
	Affirm(ctx context.Context) error
	Lost() <-chan struct{}
}

// errLost is the error of a shard that another instance may own, or whose last writes have an unknown outcome. This
// instance writes and publishes nothing more for the shard.
var errLost = shardlog.ErrLost

// Shard is a shard in logs that instances share. All of its files are in memory, below the directory "/", and a Holding
// makes changes durable.
//
// A file tasks/TASK/NAME is stored as the value TASK/NAME. A file that only grows (see grows) is stored in parts:
// values TASK/NAME#0, TASK/NAME#1 and so on. A file that must become unreadable when its epoch ends is sealed under the
// epoch's secret; see underOf. Files *.tmp exist only in memory. ledger.jsonl has the lines of the ledger, which are
// appended only within Atomically.
//
// Sync and SyncDir make all changes in the file's directory durable. All changes that wait at the same time are written
// in one update, which is one transaction. While an update is in progress, the next one collects changes. Updates run
// one after the other, in the order of the writes in them. After the first error, memory and logs may differ. The shard
// is then lost permanently, and every write fails.
type Shard struct {
	log Holding

	section sync.Mutex // held while Atomically runs its argument f

	mu      sync.Mutex
	dirs    map[string]map[string]*logFile
	dirty   map[string]map[string]struct{} // by directory: names of files with changes that are not in an update yet
	parts   map[string][]int               // by path: the sizes of the file's values, as of the newest update
	inside  string                         // directory of the running section, which is a call of Atomically; "": none
	ledger  [][]byte
	lines   int // number of ledger lines that are in an update, or were read
	queue   []*logUpdate
	waiting map[string]*logUpdate // by directory: the newest pending update with changes in this directory
	busy    bool                  // updates are being written
	sends   int                   // counts additions to updates
	room    int                   // maximum size in bytes of all values for which a new epoch is still opened
	line    int                   // maximum size of a ledger line
	failed  error
}

// logFile is a file. Its bytes are never modified in place, only replaced or appended to.
type logFile struct {
	path string // its current name
	data []byte
	kept int // number of leading bytes that are unchanged since the newest update
}

// logUpdate is an update that is pending or in progress.
type logUpdate struct {
	put    map[string]shardlog.Value
	remove map[string]struct{}
	lines  [][]byte
	bytes  int
	done   chan struct{}
	err    error
}

// updateBytes is the approximate maximum size of an update. Further changes go into another update.
const updateBytes = 16 << 20

// partBytes is the size of a full part of a file. A part of this size is not rewritten any more.
const partBytes = 256 << 10

const logTasks = "/tasks"

// NewShard returns the shard of a holding. The shard's state directory is "".
//
// Errors: the holding has values that no Shard has written.
func NewShard(h Holding) (*Shard, error) {
	s := &Shard{
		log: h, dirs: map[string]map[string]*logFile{logTasks: {}, "/": {}}, dirty: map[string]map[string]struct{}{},
		parts: map[string][]int{}, ledger: h.Lines(), waiting: map[string]*logUpdate{}, room: epoch.ShardStates,
		line: shardlog.MaxLine,
	}
	s.lines = len(s.ledger)
	values := h.Values()
	type part struct {
		number int
		data   []byte
	}
	grown := map[string][]part{}
	for key, v := range values {
		name, number, isPart := strings.Cut(key, "#")
		task, file, ok := strings.Cut(name, "/")
		p := path.Join(logTasks, name)
		if !ok || task == "" || file == "" || strings.Contains(file, "/") || isPart != grows(file) {
			return nil, fmt.Errorf("%w: the shard has a value %q that this version does not know",
				failure.ErrState, key)
		}
		if !isPart {
			s.put(&logFile{path: p, data: v.Data, kept: len(v.Data)})
			s.parts[p] = []int{len(v.Data)}
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("%w: the shard has a value %q that this version does not know",
				failure.ErrState, key)
		}
		grown[p] = append(grown[p], part{n, v.Data})
	}
	for p, list := range grown {
		slices.SortFunc(list, func(a, b part) int { return a.number - b.number })
		f := &logFile{path: p}
		for i := range list {
			if list[i].number != i {
				return nil, fmt.Errorf("%w: the shard lacks part %d of %s", failure.ErrState, i, p)
			}
			f.data = append(f.data, list[i].data...)
			s.parts[p] = append(s.parts[p], len(list[i].data))
		}
		f.kept = len(f.data)
		s.put(f)
	}
	return s, nil
}

// put adds a file under its path.
func (s *Shard) put(f *logFile) {
	dir, name := path.Split(f.path)
	dir = path.Clean(dir)
	if s.dirs[dir] == nil {
		s.dirs[dir] = map[string]*logFile{}
	}
	s.dirs[dir][name] = f
}

// find returns the file with a path, or nil if there is none.
func (s *Shard) find(p string) *logFile {
	dir, name := path.Split(p)
	return s.dirs[path.Clean(dir)][name]
}

// grows reports whether a file of this name is repeatedly appended to.
func grows(name string) bool {
	return strings.HasPrefix(name, state.PersonsPrefix) || strings.HasPrefix(name, "archive-")
}

// keyOf returns the key of a file's value.
func keyOf(p string) string { return strings.TrimPrefix(p, logTasks+"/") }

// partKey returns the key of one of a file's parts.
func partKey(p string, number int) string { return keyOf(p) + "#" + strconv.Itoa(number) }

// underOf returns the name of the secret under which a file is sealed: destroying the secret makes the file unreadable.
// It returns "" for a file that outlives its epoch or belongs to none.
func underOf(name string, data []byte) string {
	switch {
	case name == state.CheckpointName:
		if epoch, ok := state.CheckpointEpoch(data); ok {
			return state.SecretName(epoch)
		}
		return state.SecretName(0) // There is no secret of epoch 0, so the file is not written.
	case strings.HasPrefix(name, state.PersonsPrefix), strings.HasPrefix(name, state.InitialPrefix):
		_, rest, _ := strings.Cut(name, "-")
		number, _, _ := strings.Cut(rest, ".")
		return state.SecretPrefix + number
	}
	return ""
}

// changed marks a file as changed.
func (s *Shard) changed(p string) {
	if strings.HasSuffix(p, state.TemporarySuffix) {
		return
	}
	dir, name := path.Split(p)
	dir = path.Clean(dir)
	if s.dirty[dir] == nil {
		s.dirty[dir] = map[string]struct{}{}
	}
	s.dirty[dir][name] = struct{}{}
}

// gather returns the changes in a directory, and marks them as collected. The caller holds s.mu.
func (s *Shard) gather(dir string) (*logUpdate, error) {
	u := &logUpdate{put: map[string]shardlog.Value{}, remove: map[string]struct{}{}}
	names := slices.Sorted(maps.Keys(s.dirty[dir]))
	delete(s.dirty, dir)
	for _, name := range names {
		p := path.Join(dir, name)
		f, had := s.dirs[dir][name], s.parts[p]
		if path.Dir(dir) != logTasks {
			return nil, fmt.Errorf("internal: %s is not a file of a task", p)
		}
		switch {
		case f == nil && had == nil:
			continue
		case f == nil:
			u.drop(p, name, had, 0)
			delete(s.parts, p)
			continue
		}
		under := underOf(name, f.data)
		if under != "" {
			if s.dirs[dir][under] == nil {
				return nil, fmt.Errorf("internal: %s must be sealed under %s, which does not exist", p, under)
			}
			under = keyOf(path.Join(dir, under))
		}
		if !grows(name) {
			u.add(keyOf(p), shardlog.Value{Data: f.data, Under: under})
			s.parts[p] = []int{len(f.data)}
			f.kept = len(f.data)
			continue
		}
		from, at := rewritten(had, f.kept, len(f.data))
		u.drop(p, name, had, from+1)
		u.add(partKey(p, from), shardlog.Value{Data: f.data[at:], Under: under})
		s.parts[p] = append(slices.Clone(had[:from]), len(f.data)-at)
		f.kept = len(f.data)
	}
	return u, nil
}

// add adds a value to the update.
func (u *logUpdate) add(key string, v shardlog.Value) {
	delete(u.remove, key)
	u.put[key] = v
	u.bytes += len(v.Data)
}

// drop removes the value of a file or, for a file in parts, the parts numbered `from` and above.
func (u *logUpdate) drop(p, name string, parts []int, from int) {
	if !grows(name) {
		delete(u.put, keyOf(p))
		u.remove[keyOf(p)] = struct{}{}
		return
	}
	for i := from; i < len(parts); i++ {
		delete(u.put, partKey(p, i))
		u.remove[partKey(p, i)] = struct{}{}
	}
}

// rewritten returns the number of the first part of a file that must be written again, and the offset of that part. The
// first `kept` bytes have not changed. A small part is also written again if it is no larger than everything after it;
// it is then merged with these bytes. So there are few parts, and a byte is rewritten only a few times.
func rewritten(parts []int, kept, size int) (from, at int) {
	for from < len(parts) && at+parts[from] <= kept {
		at += parts[from]
		from++
	}
	for from > 0 && parts[from-1] < partBytes && parts[from-1] <= size-at {
		from--
		at -= parts[from]
	}
	return from, at
}

// empty reports whether an update has no changes.
func (u *logUpdate) empty() bool { return len(u.put)+len(u.remove)+len(u.lines) == 0 }

// send adds the changes of a directory, and lines of the ledger, to the next update. It returns the update to wait for,
// or nil if there is none. The caller holds s.mu.
func (s *Shard) send(dir string, u *logUpdate) *logUpdate {
	if u.empty() {
		return s.waiting[dir]
	}
	var last *logUpdate
	if n := len(s.queue); n > 0 {
		last = s.queue[n-1]
	}
	if last == nil || last.bytes+u.bytes > updateBytes {
		last = &logUpdate{put: map[string]shardlog.Value{}, remove: map[string]struct{}{}, done: make(chan struct{})}
		s.queue = append(s.queue, last)
	}
	for key := range u.remove {
		delete(last.put, key)
		last.remove[key] = struct{}{}
	}
	for key, v := range u.put {
		last.add(key, v)
	}
	last.lines = append(last.lines, u.lines...)
	s.sends++
	s.waiting[dir] = last
	if !s.busy {
		s.busy = true
		go s.work()
	}
	return last
}

// All tasks tick at the same time. So the first update after a pause waits until no changes were added for lullTime. It
// waits at most mostLulls times, and not at all if every task already waits for the update.
const (
	lullTime  = 2 * time.Millisecond
	mostLulls = 15
)

// lull waits for changes that other tasks are about to write.
func (s *Shard) lull() {
	for range mostLulls {
		s.mu.Lock()
		all, sends := len(s.waiting) >= len(s.dirs)-2, s.sends // two of the directories do not belong to tasks
		s.mu.Unlock()
		if all {
			return
		}
		time.Sleep(lullTime)
		s.mu.Lock()
		still := s.sends == sends
		s.mu.Unlock()
		if still {
			return
		}
	}
}

// work writes updates, one after the other, until there is none.
func (s *Shard) work() {
	s.lull()
	for {
		s.mu.Lock()
		if len(s.queue) == 0 {
			s.busy = false
			s.mu.Unlock()
			return
		}
		u := s.queue[0]
		s.queue = s.queue[1:]
		err := s.failed
		s.mu.Unlock()
		if err == nil {
			err = s.log.Update(context.Background(), u.put, slices.Sorted(maps.Keys(u.remove)), u.lines)
		}
		s.mu.Lock()
		if err != nil {
			err = s.lose(err)
		}
		u.err = err
		maps.DeleteFunc(s.waiting, func(_ string, x *logUpdate) bool { return x == u })
		s.mu.Unlock()
		close(u.done)
	}
}

// wait waits until the update has ended.
func (u *logUpdate) wait() error {
	if u == nil {
		return nil
	}
	<-u.done
	return u.err
}

// lostError is an errLost with a text. It does not wrap its cause, because an error of a broker could make a caller
// retry.
type lostError struct{ text string }

func (e *lostError) Error() string { return e.text }

func (e *lostError) Is(target error) bool { return target == errLost }

// lose marks the shard as lost. The caller holds s.mu.
func (s *Shard) lose(cause error) error {
	if s.failed == nil {
		text := cause.Error()
		if !errors.Is(cause, errLost) {
			text = "the shard's logs are older than the state in memory: " + text
		}
		s.failed = &lostError{text}
	}
	return s.failed
}

// left returns by how many bytes the values may grow before the shard opens no more epochs.
func (s *Shard) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.room
	for _, parts := range s.parts {
		for _, n := range parts {
			left -= n
		}
	}
	return left
}

// Lost reports whether nothing may be published any more.
func (s *Shard) Lost() bool {
	select {
	case <-s.log.Lost():
		return true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed != nil
}

// Affirm checks that no other instance owns the shard.
func (s *Shard) Affirm() error {
	err := s.log.Affirm(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, errLost) {
		err = s.lose(err)
	}
	return cmp.Or(s.failed, err)
}

// flush makes the changes in a directory durable. It does nothing if a running section will do that.
func (s *Shard) flush(dir string) error {
	s.mu.Lock()
	u, err := s.sendChanges(path.Clean(dir))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return u.wait()
}

func (s *Shard) sendChanges(dir string) (*logUpdate, error) {
	if s.failed != nil {
		return nil, s.failed
	}
	if s.inside == dir {
		return nil, nil
	}
	u, err := s.gather(dir)
	if err != nil {
		return nil, s.lose(err)
	}
	return s.send(dir, u), nil
}

// Atomically implements [state.Shard]. It runs f as a section: all changes made by f are written in one update, which
// may also have changes of other tasks. A shard runs one section at a time. The next section may begin while the update
// of the last one is in progress; its changes are then written in the same or a later update. If f fails after it
// changed something, the shard is lost. f must not call Atomically itself.
func (s *Shard) Atomically(dir string, f func() error) error {
	dir = path.Clean(dir)
	s.section.Lock()
	s.mu.Lock()
	_, err := s.sendChanges(dir) // flush earlier changes, so that only the changes of f remain
	if err == nil {
		s.inside = dir
	}
	s.mu.Unlock()
	if err != nil {
		s.section.Unlock()
		return err
	}
	err = f()
	s.mu.Lock()
	s.inside = ""
	u, wrong := s.gather(dir)
	if wrong == nil {
		u.lines = s.ledger[s.lines:len(s.ledger):len(s.ledger)]
		s.lines = len(s.ledger)
	}
	switch {
	case s.failed != nil:
		wrong = s.failed
	case wrong != nil:
		wrong = s.lose(wrong)
	case err != nil && !u.empty():
		wrong = s.lose(fmt.Errorf("a change failed halfway: %w", err))
	}
	if wrong == nil && err == nil {
		u = s.send(dir, u)
	}
	s.mu.Unlock()
	s.section.Unlock()
	if wrong != nil {
		return wrong
	}
	if err != nil {
		return err
	}
	return u.wait()
}

// atLedger is the path of the ledger.
const atLedger = "/" + ledger.FileName

// Create implements [state.Disk].
func (s *Shard) Create(name string) (state.File, error) {
	name = path.Clean(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.find(name) != nil || name == atLedger {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	return s.create(name)
}

func (s *Shard) create(name string) (state.File, error) {
	if s.failed != nil {
		return nil, s.failed
	}
	if s.dirs[path.Dir(name)] == nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrNotExist}
	}
	f := &logFile{path: name}
	s.put(f)
	s.changed(name)
	return &openLog{s, f}, nil
}

// Append implements [state.Disk].
func (s *Shard) Append(name string) (state.File, error) {
	name = path.Clean(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == atLedger {
		return &openLedgerLog{s}, s.failed
	}
	if f := s.find(name); f != nil {
		return &openLog{s, f}, s.failed
	}
	return s.create(name)
}

// Overwrite implements [state.Disk]. Nothing calls it for a Shard, because no write is torn.
func (s *Shard) Overwrite(name string) (state.File, error) {
	return nil, fmt.Errorf("internal: cannot overwrite %s in a shard", name)
}

// ReadFile implements [state.Disk].
func (s *Shard) ReadFile(name string) ([]byte, error) {
	name = path.Clean(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == atLedger && len(s.ledger) > 0 {
		return append(bytes.Join(s.ledger, []byte("\n")), '\n'), nil
	}
	f := s.find(name)
	if f == nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return append([]byte{}, f.data...), nil
}

// Open implements [state.Disk].
func (s *Shard) Open(name string) (io.ReadCloser, error) {
	data, err := s.ReadFile(name)
	return io.NopCloser(bytes.NewReader(data)), err
}

// ReadDir implements [state.Disk].
func (s *Shard) ReadDir(dir string) ([]string, error) {
	dir = path.Clean(dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	files, ok := s.dirs[dir]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	names := slices.Collect(maps.Keys(files))
	if dir == logTasks {
		for d := range s.dirs {
			if path.Dir(d) == logTasks {
				names = append(names, path.Base(d))
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// MkdirAll implements [state.Disk]. An empty directory exists only in this process.
func (s *Shard) MkdirAll(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := path.Clean(dir); s.dirs[d] == nil; d = path.Dir(d) {
		s.dirs[d] = map[string]*logFile{}
	}
	return s.failed
}

// Rename implements [state.Disk].
func (s *Shard) Rename(from, to string) error {
	from, to = path.Clean(from), path.Clean(to)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.find(from)
	switch {
	case s.failed != nil:
		return s.failed
	case f == nil:
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	delete(s.dirs[path.Dir(from)], path.Base(from))
	f.path, f.kept = to, 0
	s.put(f)
	s.changed(from)
	s.changed(to)
	return nil
}

// Link implements [state.Disk]. Nothing calls it for a Shard, because no write is torn.
func (s *Shard) Link(from, _ string) error {
	return fmt.Errorf("internal: cannot link %s in a shard", from)
}

// Remove implements [state.Disk]. Removing a secret also removes everything that is sealed under it.
func (s *Shard) Remove(name string) error {
	name = path.Clean(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, base := path.Dir(name), path.Base(name)
	switch {
	case s.failed != nil:
		return s.failed
	case s.dirs[dir][base] == nil:
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	delete(s.dirs[dir], base)
	s.changed(name)
	if strings.HasPrefix(base, state.SecretPrefix) {
		for other, f := range s.dirs[dir] {
			if underOf(other, f.data) == base {
				delete(s.dirs[dir], other)
				s.changed(f.path)
			}
		}
	}
	return nil
}

// Truncate implements [state.Disk]. It does not remove lines of the ledger.
func (s *Shard) Truncate(name string, size int64) error {
	name = path.Clean(name)
	s.mu.Lock()
	f := s.find(name)
	switch {
	case s.failed != nil:
		defer s.mu.Unlock()
		return s.failed
	case f == nil || size > int64(len(f.data)):
		defer s.mu.Unlock()
		return &fs.PathError{Op: "truncate", Path: name, Err: fs.ErrNotExist}
	}
	f.data = f.data[:size:size] // The limited capacity makes later appends copy the bytes.
	f.kept = min(f.kept, int(size))
	s.changed(name)
	s.mu.Unlock()
	return s.flush(path.Dir(name))
}

// SyncDir implements [state.Disk].
func (s *Shard) SyncDir(dir string) error { return s.flush(dir) }

// openLog is a file that is open for appending.
type openLog struct {
	s *Shard
	f *logFile
}

func (o *openLog) Write(p []byte) (int, error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	if o.s.failed != nil {
		return 0, o.s.failed
	}
	o.f.data = append(o.f.data, p...)
	if o.s.find(o.f.path) == o.f {
		o.s.changed(o.f.path)
	}
	return len(p), nil
}

func (o *openLog) Sync() error {
	o.s.mu.Lock()
	name := o.f.path
	o.s.mu.Unlock()
	if strings.HasSuffix(name, state.TemporarySuffix) {
		return nil
	}
	return o.s.flush(path.Dir(name))
}

func (o *openLog) Close() error { return nil }

// openLedgerLog is the ledger, open for appending.
type openLedgerLog struct{ s *Shard }

// Write appends lines. It must be called within a section.
func (o *openLedgerLog) Write(p []byte) (int, error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	text, whole := bytes.CutSuffix(p, []byte("\n"))
	switch {
	case o.s.failed != nil:
		return 0, o.s.failed
	case o.s.inside == "" || !whole:
		return 0, o.s.lose(errors.New("internal: a line of the ledger was written outside of a section"))
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		o.s.ledger = append(o.s.ledger, bytes.Clone(line))
	}
	return len(p), nil
}

func (o *openLedgerLog) Sync() error { return nil }

func (o *openLedgerLog) Close() error { return nil }

// InTurn implements [state.Shard]. Commits of a shard already take turns.
func (s *Shard) InTurn(commit func() error) error { return commit() }

// Tears implements [state.Shard]. A transaction is written as a whole or not at all.
func (s *Shard) Tears() bool { return false }

// Unpublished implements [state.Shard]: the tasks of the shard share ShardOutbox.
func (s *Shard) Unpublished(most, tasks int) int { return min(most, epoch.ShardOutbox/tasks) }

// Fits implements [state.Shard]. Without this check, commits of the new epoch could later be refused, and with them the
// commits of all tasks of the shard.
func (s *Shard) Fits(partitions, state int) error {
	if n := ledger.ClosingBytes(partitions); n > s.line {
		return failure.Haltf(failure.Configuration,
			"a merged epoch over %d partitions needs a ledger line of up to %d bytes, but a shard accepts at most "+
				"%d: merge fewer partitions, or run this stream without [cluster]", partitions, n, s.line)
	}
	if left := s.left(); state > left {
		return failure.Haltf(failure.Configuration,
			"the epoch's state has %d bytes, but its shard has room for only %d: the streams of this topic are too "+
				"large for one shard: use fewer columns, or a new group with more shards", state,
			max(left, 0))
	}
	return nil
}
