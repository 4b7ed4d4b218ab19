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

// Holding is what a shard over shared logs asks of their protocol; see [shardlog.Holding].
type Holding interface {
	Values() map[string]shardlog.Value
	Lines() [][]byte
	Update(ctx context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error
	Affirm(ctx context.Context) error
	Lost() <-chan struct{}
}

// errLost says that another instance may have the shard, or that nobody knows what of the last
// writes is durable. Nothing more is written or published for it here.
var errLost = shardlog.ErrLost

// Shard is a shard in logs that instances share. All of it is in memory, below the directory
// "/"; a holding makes durable what changes.
//
// A file tasks/TASK/NAME is the value TASK/NAME. A file that only grows (see grows) is values
// TASK/NAME#0, TASK/NAME#1 and so on, its parts. What ends with an epoch is sealed under its
// secret; see underOf. Files *.tmp are nowhere but in memory. ledger.jsonl is the lines of the
// ledger, which are appended in atomically only.
//
// Sync and SyncDir make durable all that has changed in the file's directory. What waits for that
// at a time goes out in one update, which is one transaction; while one is under way the next one
// gathers. Updates take place one after the other, in the order in which what is in them was
// written. After the first error memory and logs may differ: then the shard is lost for ever, and
// every write fails.
type Shard struct {
	log Holding

	section sync.Mutex // held while f of atomically runs

	mu      sync.Mutex
	dirs    map[string]map[string]*logFile
	dirty   map[string]map[string]struct{} // by directory: names that changed since they were in an update
	parts   map[string][]int               // of each path: the sizes of its values, as of the newest update
	inside  string                         // the directory of the section that runs; "": none does
	ledger  [][]byte
	lines   int // of ledger: in an update, or read
	queue   []*logUpdate
	waiting map[string]*logUpdate // by directory: the newest update with something of it that has not ended
	busy    bool                  // Updates are worked off
	sends   int                   // how often something was put into one
	room    int                   // bytes of values up to which epochs are opened
	line    int                   // bytes of a ledger's line
	failed  error
}

// logFile is a file. Its bytes are never changed in place, only replaced or appended to.
type logFile struct {
	path string // its name now
	data []byte
	kept int // so many bytes are as in the newest update
}

// logUpdate is one that was not sent yet, or is under way.
type logUpdate struct {
	put    map[string]shardlog.Value
	remove map[string]struct{}
	lines  [][]byte
	bytes  int
	done   chan struct{}
	err    error
}

// updateBytes is about the size of an update from which a further one is begun.
const updateBytes = 16 << 20

// partBytes is the size from which a part of a file is not written again.
const partBytes = 256 << 10

const logTasks = "/tasks"

// NewShard returns the shard that a holding has. Its directory is "".
//
// Errors: of values that no Shard has written.
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
			return nil, fmt.Errorf("%w: the shard has a value %q, which this version does not know",
				failure.ErrState, key)
		}
		if !isPart {
			s.put(&logFile{path: p, data: v.Data, kept: len(v.Data)})
			s.parts[p] = []int{len(v.Data)}
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("%w: the shard has a value %q, which this version does not know",
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

// put makes a file known under its path.
func (s *Shard) put(f *logFile) {
	dir, name := path.Split(f.path)
	dir = path.Clean(dir)
	if s.dirs[dir] == nil {
		s.dirs[dir] = map[string]*logFile{}
	}
	s.dirs[dir][name] = f
}

// find returns the file of a path, nil if there is none.
func (s *Shard) find(p string) *logFile {
	dir, name := path.Split(p)
	return s.dirs[path.Clean(dir)][name]
}

// grows reports whether a file of this name is appended to again and again.
func grows(name string) bool {
	return strings.HasPrefix(name, state.PersonsPrefix) || strings.HasPrefix(name, "archive-")
}

// keyOf returns the key of a file's value.
func keyOf(p string) string { return strings.TrimPrefix(p, logTasks+"/") }

// partKey returns the key of one of a file's parts.
func partKey(p string, number int) string { return keyOf(p) + "#" + strconv.Itoa(number) }

// underOf returns the name of the secret that a file ends with, "" for a file that outlives its
// epoch, or belongs to none.
func underOf(name string, data []byte) string {
	switch {
	case name == state.CheckpointName:
		if epoch, ok := state.CheckpointEpoch(data); ok {
			return state.SecretName(epoch)
		}
		return state.SecretName(0) // there is none: it is not written
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

// gather returns what has changed in a directory, and forgets that it has. s.mu is held.
func (s *Shard) gather(dir string) (*logUpdate, error) {
	u := &logUpdate{put: map[string]shardlog.Value{}, remove: map[string]struct{}{}}
	names := slices.Sorted(maps.Keys(s.dirty[dir]))
	delete(s.dirty, dir)
	for _, name := range names {
		p := path.Join(dir, name)
		f, had := s.dirs[dir][name], s.parts[p]
		if path.Dir(dir) != logTasks {
			return nil, fmt.Errorf("internal: %s is no file of a task", p)
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
				return nil, fmt.Errorf("internal: %s ends with %s, which is not there", p, under)
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

// add puts a value.
func (u *logUpdate) add(key string, v shardlog.Value) {
	delete(u.remove, key)
	u.put[key] = v
	u.bytes += len(v.Data)
}

// drop removes the values of a file, or its parts from a number on.
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

// rewritten returns from which part on a file is written again, and the offset at which that
// begins. Of the bytes up to kept nothing has changed. A part that is no larger than all behind it
// goes together with them, so that there are few parts, and a byte is written again seldom.
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

// empty reports whether an update would do nothing.
func (u *logUpdate) empty() bool { return len(u.put)+len(u.remove)+len(u.lines) == 0 }

// send puts what changed in a directory, with lines of the ledger, into the next update. It
// returns the update to wait for; nil: there is none. s.mu is held.
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

// Tasks tick together. So an update that is the first for a while waits until nothing has come for
// lullTime, at most mostLulls times that, unless all tasks wait for it.
const (
	lullTime  = 2 * time.Millisecond
	mostLulls = 15
)

// lull waits for what other tasks are about to write.
func (s *Shard) lull() {
	for range mostLulls {
		s.mu.Lock()
		all, sends := len(s.waiting) >= len(s.dirs)-2, s.sends // two are no task's
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

// work makes updates durable, one after the other, until there is none.
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

// wait waits for an update.
func (u *logUpdate) wait() error {
	if u == nil {
		return nil
	}
	<-u.done
	return u.err
}

// lostError is an errLost. What led to it is in the text alone: no error of a broker may make
// somebody try again.
type lostError struct{ text string }

func (e *lostError) Error() string { return e.text }

func (e *lostError) Is(target error) bool { return target == errLost }

// lose ends the shard. s.mu is held.
func (s *Shard) lose(cause error) error {
	if s.failed == nil {
		text := cause.Error()
		if !errors.Is(cause, errLost) {
			text = "the shard's logs are behind what this process has in memory: " + text
		}
		s.failed = &lostError{text}
	}
	return s.failed
}

// left returns how many bytes of values fit before no epoch is opened.
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

// Affirm makes sure that no other instance has the shard.
func (s *Shard) Affirm() error {
	err := s.log.Affirm(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, errLost) {
		err = s.lose(err)
	}
	return cmp.Or(s.failed, err)
}

// flush makes durable what has changed in a directory, unless a section does later.
func (s *Shard) flush(dir string) error {
	s.mu.Lock()
	u, err := s.flushed(path.Clean(dir))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return u.wait()
}

func (s *Shard) flushed(dir string) (*logUpdate, error) {
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

// Atomically is [shard.atomically]. What f leaves goes out in one update, also with that of other
// tasks. Sections of a shard begin one after the other. The next may begin while the update of the
// last one is under way: it goes out with the same or a later one. If f fails after it has changed
// something, the shard is lost. f must not begin a section itself.
func (s *Shard) Atomically(dir string, f func() error) error {
	dir = path.Clean(dir)
	s.section.Lock()
	s.mu.Lock()
	_, err := s.flushed(dir) // of before, so that it is known what f changes
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
		wrong = s.lose(fmt.Errorf("half of a change: %w", err))
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

// Create implements disk.
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

// Append implements disk.
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

// Overwrite implements disk: nothing needs it here, where no write is torn.
func (s *Shard) Overwrite(name string) (state.File, error) {
	return nil, fmt.Errorf("internal: %s would be written over", name)
}

// ReadFile implements disk.
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

// Open implements disk.
func (s *Shard) Open(name string) (io.ReadCloser, error) {
	data, err := s.ReadFile(name)
	return io.NopCloser(bytes.NewReader(data)), err
}

// ReadDir implements disk.
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

// MkdirAll implements disk. A directory without files is there for this process alone.
func (s *Shard) MkdirAll(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := path.Clean(dir); s.dirs[d] == nil; d = path.Dir(d) {
		s.dirs[d] = map[string]*logFile{}
	}
	return s.failed
}

// Rename implements disk.
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

// Link implements disk: nothing needs it here, where no write is torn.
func (s *Shard) Link(from, _ string) error {
	return fmt.Errorf("internal: %s would get a second name", from)
}

// Remove implements disk. What is sealed under a secret goes with it.
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

// Truncate implements disk. Lines of the ledger stay.
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
	f.data = f.data[:size:size] // what is appended goes elsewhere
	f.kept = min(f.kept, int(size))
	s.changed(name)
	s.mu.Unlock()
	return s.flush(path.Dir(name))
}

// SyncDir implements disk.
func (s *Shard) SyncDir(dir string) error { return s.flush(dir) }

// openLog is a file that is open for writing at its end.
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

// openLedgerLog is the ledger, open for writing at its end.
type openLedgerLog struct{ s *Shard }

// Write appends lines, in a section.
func (o *openLedgerLog) Write(p []byte) (int, error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	text, whole := bytes.CutSuffix(p, []byte("\n"))
	switch {
	case o.s.failed != nil:
		return 0, o.s.failed
	case o.s.inside == "" || !whole:
		return 0, o.s.lose(errors.New("internal: a line of the ledger outside of a section"))
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		o.s.ledger = append(o.s.ledger, bytes.Clone(line))
	}
	return len(p), nil
}

func (o *openLedgerLog) Sync() error { return nil }

func (o *openLedgerLog) Close() error { return nil }

// InTurn implements [state.Shard]: all commits of a shard are in turn.
func (s *Shard) InTurn(commit func() error) error { return commit() }

// Tears implements [state.Shard]: a transaction is written as a whole.
func (s *Shard) Tears() bool { return false }

// Unpublished implements [state.Shard]: the tasks of the shard share ShardOutbox.
func (s *Shard) Unpublished(most, tasks int) int { return min(most, epoch.ShardOutbox/tasks) }

// Fits implements shard: later its commits would be refused, and with them those of all tasks of the shard.
func (s *Shard) Fits(partitions, state int) error {
	if n := ledger.ClosingBytes(partitions); n > s.line {
		return failure.Haltf(failure.Configuration,
			"the ledger's line of a merged epoch over %d partitions has up to %d bytes, and one in a shard at most "+
				"%d: merge fewer partitions, or run this stream without [cluster]", partitions, n, s.line)
	}
	if left := s.left(); state > left {
		return failure.Haltf(failure.Configuration,
			"the epoch's state has %d bytes, and its shard has room for %d: the streams of this topic are too large "+
				"for one shard; "+
				"fewer columns make a state smaller, and more shards, in a new group, have more room", state,
			max(left, 0))
	}
	return nil
}
