// Package cluster lets several instances share tasks. A task's files are in logs in Kafka, a [Shard] for each group of
// tasks, and one instance at a time owns a shard: see [Member]. The package also has what commands do with a group:
// [Init], [Check], [Import], [Export], [ReadBooks], [Ask] and [Look].
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// giveTime is how long the tasks of a shard that is given away have for their last commit and for
// what is to be published. Then the shard counts as lost: who acquires it publishes the rest.
const giveTime = epoch.ShutdownTime + 5*time.Second

// The time that a transaction may stay open, and the most it becomes after some that took longer.
const (
	leastTransaction = 10 * time.Second
	mostTransaction  = time.Minute
)

// group is what a process asks of the group of instances that it is a member of.
type group interface {
	// Generations tells which shards are whose, the newest word only. It is closed by Close.
	Generations() <-chan kgroup.Generation
	// Log returns the logs of a shard, for one holding.
	Log(shard int) shardlog.Log
	// Close leaves the group.
	Close(ctx context.Context)
}

// Runner runs the tasks of shards for a member: the daemon.
type Runner interface {
	// OpenShard makes the tasks of a shard. Nothing of them runs yet.
	OpenShard(shard int, files *Shard) (Tasks, error)
	// Ask gives a request to its task's owner and waits for the answer.
	Ask(ctx, patience context.Context, q task.Request) error
}

// Tasks are the tasks of a shard.
type Tasks interface {
	// Begin shows them, and starts all that is to be done for the shard. run runs a part of it beside the others,
	// until its context ends.
	Begin(run func(func(context.Context) error))
	// End makes sure that nothing more is started.
	End()
	// Gone takes down what the process has of them, after all that Begin started has ended.
	Gone()
}

// Member runs the tasks of those shards that a group of instances gives to this one.
//
// A shard that the group gives to this instance is acquired, which fences its former owner, and
// its tasks run until the group gives it to another one. Then they stop as on SIGTERM. Neither
// rebalances nor a lost coordinator stop a task. Where this instance does not know how a
// transaction ended, another one may own the shard: its tasks end without another word, and it is
// acquired again.
type Member struct {
	process   *epoch.Process
	runs      Runner
	reach     kafka.Options // how the cluster is reached
	advertise func() string // where others find this instance's status
	group     group
	genesis   shardlog.Genesis // of every shard, without its number
	instance  string
	witnesses string        // directory of what is known of each ledger
	turns     chan struct{} // has an element for each shard that is being acquired, up to so many

	mu         sync.Mutex
	generation *kgroup.Generation  // the newest; nil: none yet
	posts      map[int]*assignment // by shard
	trouble    string              // why the group has no word for this instance at the moment
}

// Options are what a member needs of its process.
type Options struct {
	Process   *epoch.Process
	Runs      Runner
	Reach     kafka.Options // how the cluster is reached
	Advertise func() string // where others find this instance's status
}

// NewMember returns a member that has not joined its group yet; see [Member.Share].
func NewMember(o Options) *Member {
	c := o.Process.Cfg
	return &Member{
		process: o.Process, runs: o.Runs, reach: o.Reach, advertise: o.Advertise, instance: connect.InstanceName(c),
		witnesses: filepath.Join(c.State.Dir, WitnessDir), posts: map[int]*assignment{},
		turns: make(chan struct{}, acquiring),
	}
}

// assignment is a shard from the moment that the group gives it to this instance until it is given up.
type assignment struct {
	shard int
	ctx   context.Context    // ends when the shard is to be given up
	stop  context.CancelFunc // gives the shard up
	word  chan struct{}      // there is a newer generation, and it says the same
	ended chan struct{}      // closed when nothing of the shard runs any more
	given time.Time          // when the group gave it; zero once its tasks have run

	mu    sync.Mutex
	state string // one of those below
	why   string // it is in this state
}

// The states of an assignment.
const (
	postAcquiring = "acquiring"
	postRunning   = "running"
	postHalted    = "halted"
	postLeaving   = "leaving"
)

// set changes what is to be said of the assignment, and reports whether that is another thing.
func (a *assignment) set(state, why string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	same := a.state == state && a.why == why
	a.state, a.why = state, why
	return !same
}

// run follows the group until the context ends. Then it gives all shards up, commits first, and
// leaves the group.
func (s *Member) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			for _, p := range s.all() {
				<-p.ended
			}
			leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTime)
			s.group.Close(leaving)
			cancel()
			return
		case g, ok := <-s.group.Generations():
			if ok {
				s.follow(ctx, g)
			}
		}
	}
}

// all returns the posts as they are now, by shard.
func (s *Member) all() []*assignment {
	s.mu.Lock()
	defer s.mu.Unlock()
	posts := slices.Collect(maps.Values(s.posts))
	slices.SortFunc(posts, func(a, b *assignment) int { return a.shard - b.shard })
	return posts
}

// follow does what a generation says: it gives up shards that are others' now, and takes those that
// are new. One that comes back while it is given up waits until that has ended.
func (s *Member) follow(ctx context.Context, g kgroup.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.generation
	s.generation, s.trouble = &g, ""
	s.process.Metrics.Generation(g.Number, g.Standby)
	if before == nil || !slices.Equal(before.Shards, g.Shards) || before.Standby != g.Standby {
		s.process.Log.Info("the group divided the shards", "generation", g.Number, "shards", g.Shards, "instances",
			len(g.Members), "standby", g.Standby)
	}
	if twice := sameName(g.Members); twice != "" && (before == nil || sameName(before.Members) != twice) {
		s.process.Log.Warn("two instances of the group have one name: set cluster.instance", "instance", twice)
	}
	if s.process.Partials != nil {
		t := input.Team{Generation: int64(g.Number), Members: g.Active(), Self: g.Self}
		if g.Standby != "" {
			t.Self = input.NoMember
		}
		s.process.Partials.Regroup(t)
	}
	for shard, p := range s.posts {
		if !slices.Contains(g.Shards, shard) {
			p.stop()
		}
	}
	for _, shard := range g.Shards {
		old := s.posts[shard]
		if old != nil && !old.left() {
			failure.Signal(old.word)
			continue
		}
		mine, stop := context.WithCancel(ctx)
		p := &assignment{shard: shard, ctx: mine, stop: stop, word: make(chan struct{}, 1), ended: make(chan struct{}),
			given: time.Now(), state: postAcquiring}
		s.posts[shard] = p
		go func() {
			defer stop()
			defer s.forget(p)
			if old != nil {
				<-old.ended
			}
			s.keep(p)
		}()
	}
	s.process.StateChanged()
}

// sameName returns the first name that two members have, "" where there is none.
func sameName(members []kgroup.MemberInfo) string {
	seen := map[string]bool{}
	for _, m := range members {
		if seen[m.Instance] {
			return m.Instance
		}
		seen[m.Instance] = true
	}
	return ""
}

// left reports whether the shard is being given up.
func (a *assignment) left() bool { return a.ctx.Err() != nil }

// now returns what is to be said of the assignment.
func (a *assignment) now() (state, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left() {
		return postLeaving, ""
	}
	return a.state, a.why
}

// forget takes an assignment off the list, after it has ended.
func (s *Member) forget(p *assignment) {
	close(p.ended)
	s.mu.Lock()
	if s.posts[p.shard] == p {
		delete(s.posts, p.shard)
	}
	s.mu.Unlock()
	s.process.StateChanged()
}

// keep acquires a shard and runs its tasks, again and again, until it is to be given up. What
// keeps the shard from running says how long it rests; see refused.
func (s *Member) keep(p *assignment) {
	ctx, log := p.ctx, s.process.Log.With("shard", p.shard)
	soon, looks := kafka.Backoff{Max: 5 * time.Second},
		kafka.Backoff{Min: s.process.LookEvery, Max: s.process.LookEvery}
	timeout := leastTransaction
	for ctx.Err() == nil {
		held, err := s.acquire(ctx, p.shard, timeout)
		if err == nil {
			began := time.Now()
			if err = s.work(p, held, log); time.Since(began) > time.Minute {
				soon.Reset()
				timeout = leastTransaction
			} else {
				timeout = min(2*timeout, mostTransaction)
			}
		}
		if ctx.Err() != nil {
			return
		}
		switch s.refused(p, err, log) {
		case monitor.OutcomeHalted:
			p.rest(looks.Next(), nil) // an operator must see to it
		case monitor.OutcomeMoved:
			if p.rest(soon.Next(), p.word) {
				soon.Reset()
			}
		default:
			p.rest(soon.Next(), nil)
		}
	}
}

// rest waits, at most until the assignment is given up or there is a word. It reports whether there is.
func (a *assignment) rest(wait time.Duration, word <-chan struct{}) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-a.ctx.Done():
	case <-timer.C:
	case <-word:
		return true
	}
	return false
}

// refused shows why a shard does not run, and returns of what kind that is:
//   - halted: its logs are not what was written, or it fails by itself. It is looked at now and
//     then; this shard alone waits for an operator.
//   - moved: the group has given it to another instance, and says so to this one soon.
//   - failed: everything else, such as brokers that do not answer, and transactions of which nobody
//     knows how they ended. It is acquired again soon.
func (s *Member) refused(p *assignment, err error, log *slog.Logger) (outcome string) {
	var (
		halt   *shardlog.HaltError
		record *shardlog.RefusedError
	)
	say, state := log.Warn, postAcquiring
	what := "the shard does not run: it is acquired again"
	switch {
	case errors.As(err, &halt), errors.As(err, &record):
		outcome, state, say, what = monitor.OutcomeHalted, postHalted, log.Error, "shard halted"
	case errors.Is(err, shardlog.ErrMoved):
		outcome, say, what = monitor.OutcomeMoved, log.Info, "the shard has moved on: waiting for the group"
	default:
		outcome = monitor.OutcomeFailed
	}
	s.process.Metrics.Acquired(outcome)
	if p.set(state, strings.TrimPrefix(err.Error(), shardlog.HaltPrefix)) {
		say(what, "error", err.Error())
	}
	s.process.StateChanged()
	return outcome
}

// Shards that are acquired at a time. Each has some connections of its own meanwhile, and what is
// read of it twice in memory; and a thousand at once would take longer than a transaction may. Who
// has waited for turnTime goes on: those before wait for a broker, or for the group.
const (
	acquiring = 32
	turnTime  = 5 * time.Second
)

// turn waits until it is a shard's turn to be acquired, and returns what ends that.
func (s *Member) turn(ctx context.Context) (end func()) {
	timer := time.NewTimer(turnTime)
	defer timer.Stop()
	select {
	case s.turns <- struct{}{}:
		return func() { <-s.turns }
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}

// acquire takes a shard.
func (s *Member) acquire(ctx context.Context, shard int, timeout time.Duration) (*shardlog.Holding, error) {
	defer s.turn(ctx)()
	genesis := s.genesis
	genesis.Shard = shard
	witness, err := s.witness(shard)
	if err != nil {
		return nil, err
	}
	return shardlog.Acquire(ctx, s.group.Log(shard),
		shardlog.Options{Genesis: genesis, Master: s.process.Key, Instance: s.instance, Witness: witness,
			Timeout: timeout})
}

// work runs the tasks of a shard that this instance holds, until the context ends, the shard is
// lost, or a failure concerns it as a whole. It returns why: a [shardlog.HaltError] for a failure.
func (s *Member) work(p *assignment, held *shardlog.Holding, log *slog.Logger) error {
	defer held.Close()
	// What is not committed in time after the end is lost: a broker that does not answer must not
	// keep the process.
	committing, abandon := context.WithCancel(context.WithoutCancel(p.ctx))
	defer abandon()
	counted := measure(within{held, committing}, s.process.Metrics)
	defer counted.end()
	c, err := s.open(p.shard, counted)
	if err != nil {
		return s.shardFailure(committing, held, err)
	}
	working, cancel := context.WithCancelCause(p.ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(working); err != nil {
				cancel(err)
			}
		})
	}
	c.Begin(run)
	run(func(ctx context.Context) error { return s.serve(ctx, p.shard, log) })
	run(func(ctx context.Context) error { return s.testify(ctx, p.shard, held) })
	p.set(postRunning, "")
	log.Info("shard acquired")
	s.process.Metrics.Acquired(monitor.OutcomeAcquired)
	s.process.Metrics.Owns(1)
	if !p.given.IsZero() {
		s.process.Metrics.TookOver(time.Since(p.given))
		p.given = time.Time{}
	}
	select {
	case <-working.Done():
	case <-held.Lost():
		cancel(held.Err())
	}
	late := time.AfterFunc(giveTime, func() {
		abandon()
		held.Close() // ends its own record, too
	})
	c.End()
	wg.Wait()
	late.Stop()
	s.process.Metrics.Owns(-1)
	c.Gone()
	if p.ctx.Err() != nil && held.Err() == nil {
		log.Info("shard given up")
		s.process.Metrics.Lost(monitor.ReasonGiven)
		return p.ctx.Err()
	}
	err = s.shardFailure(committing, held, context.Cause(working))
	if halt := (*shardlog.HaltError)(nil); errors.As(err, &halt) {
		s.process.Metrics.Lost(monitor.ReasonFailed)
	} else {
		s.process.Metrics.Lost(monitor.ReasonUnknown)
	}
	return err
}

// open makes the tasks of a shard.
func (s *Member) open(shard int, held Holding) (Tasks, error) {
	files, err := NewShard(held)
	if err != nil {
		return nil, err
	}
	return s.runs.OpenShard(shard, files)
}

// shardFailure is what keeps a shard from running: that it is lost, or a halt with another cause. Brokers that do
// not answer keep it for giveTime at most.
func (s *Member) shardFailure(ctx context.Context, held *shardlog.Holding, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, giveTime)
	defer cancel()
	if err := held.Affirm(ctx); err != nil {
		if cause != nil && !errors.Is(cause, errLost) {
			s.process.Log.Warn("a shard that is lost had another trouble", "error", cause.Error())
		}
		return err
	}
	return &shardlog.HaltError{Halt: haltShard, Err: cause}
}

// haltShard is the reason of a shard whose logs are what was written, and whose tasks as a whole
// cannot run.
const haltShard shardlog.Halt = "tasks"

// within is a holding whose updates end when a context does.
type within struct {
	Holding
	Ctx context.Context
}

// Update implements holding.
func (h within) Update(_ context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	return h.Holding.Update(h.Ctx, put, remove, lines)
}

// Affirm implements holding.
func (h within) Affirm(context.Context) error { return h.Holding.Affirm(h.Ctx) }

// serve takes requests of commands, for as long as the context lasts.
func (s *Member) serve(ctx context.Context, shard int, log *slog.Logger) error {
	pause := kafka.Backoff{Max: time.Minute}
	for ctx.Err() == nil {
		began := time.Now()
		d := newRequestServer(newRequestTopic(s.process.Client, s.process.Cfg.Cluster, s.process.Key, shard), log,
			s.instance, s.process.Now, func(met context.Context, q task.Request) error {
				return s.runs.Ask(met, met, q)
			})
		if err := d.Run(ctx); err != nil {
			log.Warn("no requests are taken: the control topic cannot be read", "error", err.Error())
		}
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		pause.Wait(ctx)
	}
	return nil
}

// witness returns what this instance knows of a shard's ledger, nil for nothing.
func (s *Member) witness(shard int) (*shardlog.Witness, error) {
	path := filepath.Join(s.witnesses, strconv.Itoa(shard))
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	w, err := shardlog.ParseWitness(text)
	if err != nil {
		return nil, &shardlog.HaltError{Halt: shardlog.HaltWitness,
			Err: fmt.Errorf("%s: %w; without the file the ledger is believed", path, err)}
	}
	return &w, nil
}

// testifyEvery is how often what is known of a ledger is written down.
const testifyEvery = 2 * time.Second

// testify keeps on disk what is known to be committed of a shard's ledger. It may be behind by a
// while: then a ledger that lost its last lines is not noticed by it.
func (s *Member) testify(ctx context.Context, shard int, held *shardlog.Holding) error {
	var known string
	write := func() error {
		text := held.Witness().String()
		if text == known {
			return nil
		}
		var files state.OS
		path := filepath.Join(s.witnesses, strconv.Itoa(shard))
		if err := state.WriteOver(files, path, []byte(text)); err != nil {
			return err
		}
		known = text
		return nil
	}
	tick := time.NewTicker(testifyEvery)
	defer tick.Stop()
	failing := false
	for {
		err := write()
		if err != nil && !failing {
			s.process.Log.Warn("what is known of the ledger can't be written down", "shard", shard, "error",
				err.Error())
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			write()
			return nil
		case <-tick.C:
		}
	}
}
