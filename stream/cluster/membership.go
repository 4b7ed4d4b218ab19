// Package cluster lets several instances share tasks. The tasks are divided into shards. The files of a shard's tasks
// are in logs in Kafka (see [Shard]), and one instance at a time owns a shard (see [Member]). The package also has the
// functions behind commands on a group: [Init], [Check], [Import], [Export], [ReadBooks], [Ask] and [Look].
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

// giveTime is the time that the tasks of a shard have for their last commit and for publishing, when the shard moves to
// another instance. After that the shard counts as lost, and its next owner publishes the rest.
const giveTime = epoch.ShutdownTime + 5*time.Second

// leastTransaction is the initial timeout of a transaction. Each transaction that takes longer raises the timeout, up
// to mostTransaction.
const (
	leastTransaction = 10 * time.Second
	mostTransaction  = time.Minute
)

// group has the methods of the group of instances that a member calls.
type group interface {
	// Generations delivers the newest assignment of shards to members; older ones are dropped. Close closes the
	// channel.
	Generations() <-chan kgroup.Generation
	// Log returns the logs of a shard, for one holding.
	Log(shard int) shardlog.Log
	// Close leaves the group.
	Close(ctx context.Context)
}

// Runner runs the tasks of shards for a member: the daemon.
type Runner interface {
	// OpenShard creates the tasks of a shard. It starts none of them.
	OpenShard(shard int, files *Shard) (Tasks, error)
	// Ask passes a request to its task's owner and waits for the answer.
	Ask(ctx, patience context.Context, q task.Request) error
}

// Tasks are the tasks of a shard.
type Tasks interface {
	// Begin makes the tasks visible, and starts everything that must run for the shard. It calls run for each part that
	// runs concurrently until its context ends.
	Begin(run func(func(context.Context) error))
	// End prevents the start of anything new.
	End()
	// Gone removes the tasks from the process. It is called after everything that Begin started has ended.
	Gone()
}

// Member runs the tasks of those shards that a group of instances gives to this one.
//
// When the group gives a shard to this instance, the member acquires the shard, which fences its former owner. The
// shard's tasks run until the group gives the shard to another instance; then they stop as on SIGTERM. Neither a
// rebalance nor a lost coordinator stops a task. If the outcome of a transaction is unknown, another instance may own
// the shard: its tasks end at once, and the member acquires the shard again.
type Member struct {
	process   *epoch.Process
	runs      Runner
	reach     kafka.Options // how to reach the Kafka cluster
	advertise func() string // returns the address of this instance's status
	group     group
	genesis   shardlog.Genesis // the genesis of each shard, without the shard's number
	instance  string
	witnesses string        // directory of the witnesses of ledgers
	turns     chan struct{} // has an element for each shard that is being acquired; its capacity is the maximum number

	mu         sync.Mutex
	generation *kgroup.Generation  // the newest generation; nil: none yet
	posts      map[int]*assignment // current assignments, by shard
	trouble    string              // why the group currently cannot be reached
}

// Options are what a member needs from its process.
type Options struct {
	Process   *epoch.Process
	Runs      Runner
	Reach     kafka.Options // how to reach the Kafka cluster
	Advertise func() string // returns the address of this instance's status
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

// assignment is a shard that the group gave to this instance and that the instance has not given up yet.
type assignment struct {
	shard int
	ctx   context.Context    // cancelled when the shard must be given up
	stop  context.CancelFunc // tells the assignment to give the shard up
	word  chan struct{}      // signals a newer generation that keeps this assignment
	ended chan struct{}      // closed when nothing runs for the shard any more
	given time.Time          // time at which the group gave the shard; zero once its tasks have run

	mu    sync.Mutex
	state string // one of those below
	why   string // reason of this state
}

// These are the states of an assignment.
const (
	postAcquiring = "acquiring"
	postRunning   = "running"
	postHalted    = "halted"
	postLeaving   = "leaving"
)

// set sets state and reason, and reports whether they changed.
func (a *assignment) set(state, why string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	same := a.state == state && a.why == why
	a.state, a.why = state, why
	return !same
}

// run follows the group until the context ends. Then it gives up all shards, each after a last commit, and leaves the
// group.
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

// all returns the current assignments, ordered by shard.
func (s *Member) all() []*assignment {
	s.mu.Lock()
	defer s.mu.Unlock()
	posts := slices.Collect(maps.Values(s.posts))
	slices.SortFunc(posts, func(a, b *assignment) int { return a.shard - b.shard })
	return posts
}

// follow applies a generation: it gives up shards that other members have now, and starts assignments for new shards.
// If a shard comes back while it is being given up, follow first waits until that has ended.
func (s *Member) follow(ctx context.Context, g kgroup.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.generation
	s.generation, s.trouble = &g, ""
	s.process.Metrics.Generation(g.Number, g.Standby)
	if before == nil || !slices.Equal(before.Shards, g.Shards) || before.Standby != g.Standby {
		s.process.Log.Info("the group rebalanced", "generation", g.Number, "shards", g.Shards, "instances",
			len(g.Members), "standby", g.Standby)
	}
	if twice := sameName(g.Members); twice != "" && (before == nil || sameName(before.Members) != twice) {
		s.process.Log.Warn("two instances of the group have the same name: set cluster.instance to different "+
			"names", "instance", twice)
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

// sameName returns the first name that two members have, or "" if there is none.
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

// now returns the state of the assignment and its reason.
func (a *assignment) now() (state, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left() {
		return postLeaving, ""
	}
	return a.state, a.why
}

// forget removes an assignment from the list after it has ended.
func (s *Member) forget(p *assignment) {
	close(p.ended)
	s.mu.Lock()
	if s.posts[p.shard] == p {
		delete(s.posts, p.shard)
	}
	s.mu.Unlock()
	s.process.StateChanged()
}

// keep acquires a shard and runs its tasks, repeatedly, until the shard must be given up. After a failure it waits; how
// long depends on the outcome, see refused.
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
			p.rest(looks.Next(), nil) // an operator must act
		case monitor.OutcomeMoved:
			if p.rest(soon.Next(), p.word) {
				soon.Reset()
			}
		default:
			p.rest(soon.Next(), nil)
		}
	}
}

// rest waits until the time has passed, the assignment must be given up, or word delivers a message. It returns true
// after a message.
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

// refused records why a shard does not run, and returns the outcome:
//   - halted: the logs differ from the data written, or the shard itself fails. It is tried again now and
//     then; only this shard waits for an operator.
//   - moved: the group has given the shard to another instance, and will soon tell this one.
//   - failed: everything else, such as brokers that do not answer, and transactions with an unknown
//     outcome. The instance soon acquires the shard again.
func (s *Member) refused(p *assignment, err error, log *slog.Logger) (outcome string) {
	var (
		halt   *shardlog.HaltError
		record *shardlog.RefusedError
	)
	say, state := log.Warn, postAcquiring
	what := "cannot run the shard: acquiring it again"
	switch {
	case errors.As(err, &halt), errors.As(err, &record):
		outcome, state, say, what = monitor.OutcomeHalted, postHalted, log.Error, "shard halted"
	case errors.Is(err, shardlog.ErrMoved):
		outcome, say, what = monitor.OutcomeMoved, log.Info, "the shard moved to another instance: waiting for the "+
			"group"
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

// acquiring is the maximum number of shards that are acquired at a time. During this time each shard has its own
// connections, and its content is in memory twice; and if a thousand shards were acquired at once, they would take
// longer than the timeout of a transaction. A shard that has waited for turnTime is acquired in any case, because the
// shards before it are then stuck waiting for a broker or for the group.
const (
	acquiring = 32
	turnTime  = 5 * time.Second
)

// turn waits until it is this shard's turn to be acquired, and returns the function that ends the turn.
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

// acquire acquires a shard.
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

// work runs the tasks of a shard that this instance holds, until the context ends, the shard is lost, or it fails as a
// whole. It returns the reason, which is a [shardlog.HaltError] for a failure of the shard.
func (s *Member) work(p *assignment, held *shardlog.Holding, log *slog.Logger) error {
	defer held.Close()
	// Changes that are not committed within giveTime after the end are abandoned: a broker that does not answer must
	// not keep the process running.
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
		held.Close() // also ends the goroutine that renews the owner's record
	})
	c.End()
	wg.Wait()
	late.Stop()
	s.process.Metrics.Owns(-1)
	c.Gone()
	if p.ctx.Err() != nil && held.Err() == nil {
		log.Info("stopped running the shard")
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

// open creates the tasks of a shard.
func (s *Member) open(shard int, held Holding) (Tasks, error) {
	files, err := NewShard(held)
	if err != nil {
		return nil, err
	}
	return s.runs.OpenShard(shard, files)
}

// shardFailure returns the reason why a shard does not run: either it is lost, or a halt with the given cause. If
// brokers do not answer, shardFailure returns after giveTime at the latest.
func (s *Member) shardFailure(ctx context.Context, held *shardlog.Holding, cause error) error {
	ctx, cancel := context.WithTimeout(ctx, giveTime)
	defer cancel()
	if err := held.Affirm(ctx); err != nil {
		if cause != nil && !errors.Is(cause, errLost) {
			s.process.Log.Warn("lost a shard: its tasks stopped with this error before the loss was noticed",
				"error", cause.Error())
		}
		return err
	}
	return &shardlog.HaltError{Halt: haltShard, Err: cause}
}

// haltShard is the reason to halt a shard whose logs are intact, but whose tasks cannot run at all.
const haltShard shardlog.Halt = "tasks"

// within is a holding whose updates are cancelled when a context ends.
type within struct {
	Holding
	Ctx context.Context
}

// Update implements [Holding].
func (h within) Update(_ context.Context, put map[string]shardlog.Value, remove []string, lines [][]byte) error {
	return h.Holding.Update(h.Ctx, put, remove, lines)
}

// Affirm implements [Holding].
func (h within) Affirm(context.Context) error { return h.Holding.Affirm(h.Ctx) }

// serve answers requests of commands until the context ends.
func (s *Member) serve(ctx context.Context, shard int, log *slog.Logger) error {
	pause := kafka.Backoff{Max: time.Minute}
	for ctx.Err() == nil {
		began := time.Now()
		d := newRequestServer(newRequestTopic(s.process.Client, s.process.Cfg.Cluster, s.process.Key, shard), log,
			s.instance, s.process.Now, func(met context.Context, q task.Request) error {
				return s.runs.Ask(met, met, q)
			})
		if err := d.Run(ctx); err != nil {
			log.Warn("cannot take requests: reading the control topic failed", "error", err.Error())
		}
		if time.Since(began) > time.Minute {
			pause.Reset()
		}
		pause.Wait(ctx)
	}
	return nil
}

// witness returns this instance's witness of a shard's ledger, or nil if it has none.
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
			Err: fmt.Errorf("%s: %w; if you remove the file, the ledger is accepted without this check", path, err)}
	}
	return &w, nil
}

// testifyEvery is how often a witness is written to disk.
const testifyEvery = 2 * time.Second

// testify writes the witness of a shard's ledger to disk again and again. The file may be some seconds old: it does not
// detect the loss of lines that are newer than the file.
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
			s.process.Log.Warn("cannot write the witness of the ledger", "shard", shard, "error",
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
