package cluster_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	kgroup "github.com/streamdp/streamdp/internal/kafka/group"
	"github.com/streamdp/streamdp/internal/shardlog"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/monitor"
)

// heldLogs is a group without brokers: the logs of its shards are in memory, and it sends the generations that a test
// gives it. A test can make the calls of a shard fail, or never return.
type heldLogs struct {
	generations chan kgroup.Generation
	closed      chan struct{} // closed when the instance has left the group

	mu     sync.Mutex
	shards map[int]*heldLog
}

// heldLog is the logs of one shard.
type heldLog struct {
	state, ledger []shardlog.Record
	epoch         int                      // epoch of the newest fence
	asked         int                      // how often the logs were requested
	open          int                      // number of logs that were not closed
	fails         map[string]error         // by call: the error that the call returns
	hangs         map[string]chan struct{} // by call: the call never returns, and closes this channel once
}

func newHeldLogs() *heldLogs {
	return &heldLogs{generations: make(chan kgroup.Generation, 1), closed: make(chan struct{}),
		shards: map[int]*heldLog{}}
}

func (g *heldLogs) Generations() <-chan kgroup.Generation { return g.generations }
func (g *heldLogs) Close(context.Context)                 { close(g.closed) }

// change calls f with the logs of a shard, one call at a time.
func (g *heldLogs) change(shard int, f func(*heldLog)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.shards[shard]
	if l == nil {
		l = &heldLog{fails: map[string]error{}, hangs: map[string]chan struct{}{}}
		g.shards[shard] = l
	}
	f(l)
}

// fail makes a call of a shard fail from now on.
func (g *heldLogs) fail(shard int, call string, err error) {
	g.change(shard, func(l *heldLog) { l.fails[call] = err })
}

// attempts returns how often the logs of a shard were requested.
func (g *heldLogs) attempts(shard int) (n int) {
	g.change(shard, func(l *heldLog) { n = l.asked })
	return n
}

// open returns how many logs were not closed.
func (g *heldLogs) open() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.shards {
		n += l.open
	}
	return n
}

// hang makes a call of a shard wait for its context, and returns a channel that is closed when the call begins.
func (g *heldLogs) hang(shard int, call string) <-chan struct{} {
	begun := make(chan struct{})
	g.change(shard, func(l *heldLog) { l.hangs[call] = begun })
	return begun
}

// Log implements group.
func (g *heldLogs) Log(shard int) shardlog.Log {
	g.change(shard, func(l *heldLog) {
		l.asked++
		l.open++
	})
	return &heldAccess{g: g, shard: shard}
}

// heldAccess is a log of one holding.
type heldAccess struct {
	g      *heldLogs
	shard  int
	epoch  int
	closed bool
}

// call performs a call of the shard, unless it fails or hangs.
func (a *heldAccess) call(ctx context.Context, name string, f func(*heldLog) error) (err error) {
	var hangs bool
	a.g.change(a.shard, func(l *heldLog) {
		var begun chan struct{}
		if begun, hangs = l.hangs[name]; hangs {
			if begun != nil {
				close(begun)
			}
			l.hangs[name] = nil
			return
		}
		if err = l.fails[name]; err == nil {
			err = f(l)
		}
	})
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (a *heldAccess) Confirm(ctx context.Context) error {
	return a.call(ctx, "confirm", func(*heldLog) error { return nil })
}

func (a *heldAccess) Fence(ctx context.Context, _ time.Duration) error {
	return a.call(ctx, "fence", func(l *heldLog) error {
		l.epoch++
		a.epoch = l.epoch
		return nil
	})
}

func (a *heldAccess) Commit(ctx context.Context, state, ledger []shardlog.Record) error {
	return a.call(ctx, "commit", func(l *heldLog) error {
		if a.epoch != l.epoch {
			return errors.New("fenced")
		}
		l.state, l.ledger = append(l.state, state...), append(l.ledger, ledger...)
		return nil
	})
}

func (a *heldAccess) read(ctx context.Context, name string, records func(*heldLog) []shardlog.Record,
	each func(shardlog.Record) error) error {
	return a.call(ctx, name, func(l *heldLog) error {
		for _, r := range records(l) {
			if err := each(r); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *heldAccess) ReadState(ctx context.Context, each func(shardlog.Record) error) error {
	return a.read(ctx, "state", func(l *heldLog) []shardlog.Record { return l.state }, each)
}

func (a *heldAccess) ReadLedger(ctx context.Context, each func(shardlog.Record) error) error {
	return a.read(ctx, "ledger", func(l *heldLog) []shardlog.Record { return l.ledger }, each)
}

func (a *heldAccess) Close() {
	a.g.change(a.shard, func(l *heldLog) {
		if !a.closed {
			l.open--
		}
		a.closed = true
	})
}

// lonely runs f in a synctest bubble with the only instance of a group with some shards. There are no brokers, and
// shards 0 to 2 have no tasks. said returns the instance's log; end stops the instance, and returns how long this took.
func lonely(t *testing.T,
	f func(t *testing.T, d *cluster.Member, g *heldLogs, said func() string, end func() time.Duration)) {
	t.Helper()
	r := &streamtest.Rig{T: t, Addr: "127.0.0.1:1", Dir: t.TempDir(), Commit: "1s", Toml: fixtures.OrdersStream,
		Log: &fixtures.Journal{}, Seed: 1}
	r.Group = "[cluster]\ngroup = \"g\"\nshards = 16\nallow_unreplicated = true\n"
	o := r.Options()
	if of := o.Config.Cluster.Shard("orders", 0); of < 3 {
		t.Fatalf("shard %d has a task", of)
	}
	synctest.Test(t, func(t *testing.T) {
		var in *stream.Inside
		o.Hooks.Opened = func(i *stream.Inside) { in = i }
		d, err := stream.New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		g := newHeldLogs()
		s := in.Member
		(*s.Group()), (*s.Genesis()) = g, cluster.GenesisOf(s.Process().Cfg, s.Process().Key, "cluster")
		for shard := range 3 {
			genesis := (*s.Genesis())
			genesis.Shard = shard
			if _, err := shardlog.Create(t.Context(), g.Log(shard),
				shardlog.Options{Genesis: genesis, Master: s.Process().Key, Instance: "init"}); err != nil {
				t.Fatal(err)
			}
			g.change(shard, func(l *heldLog) { l.asked = 0 })
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.Run(ctx)
		}()
		end := sync.OnceValue(func() time.Duration {
			began := time.Now()
			cancel()
			<-ended
			return time.Since(began)
		})
		defer func() {
			end()
			for shard, l := range g.shards {
				if l.open != 0 {
					t.Errorf("%d logs of shard %d are left open", l.open, shard)
				}
			}
			if t.Failed() {
				t.Log(r.Log.String())
			}
		}()
		f(t, s, g, r.Log.String, end)
	})
}

// given returns a generation that gives shards to this instance, the only one.
func given(number int32, shards ...int) kgroup.Generation {
	return kgroup.Generation{Number: number, Shards: shards,
		Members: []kgroup.MemberInfo{{Instance: "self", Shards: shards}}}
}

// postsOf returns the states of an instance's shards, in order.
func postsOf(d *cluster.Member) string {
	var all []string
	for _, s := range d.Status().Shards {
		all = append(all, s.State)
	}
	return strings.Join(all, " ")
}

// countOf returns the value of an instance's counter for a label.
func countOf(t *testing.T, d *cluster.Member, name, label string) int {
	t.Helper()
	return fixtures.Counter(t, d.Process().Metrics.Registry, name, label)
}

// TestKeepRefused: one of two shards cannot be acquired, for various reasons. The other shard runs. The status says why
// the first shard does not run. The instance retries at a limited rate, and the shard runs when the fault is gone.
func TestKeepRefused(t *testing.T) {
	t.Parallel()
	const span = 10 * time.Minute
	soon, looks := [2]int{115, 260}, [2]int{19, 45} // numbers of attempts in that time
	fails := func(call string, err error) func(*testing.T, *cluster.Member, *heldLogs) {
		return func(_ *testing.T, _ *cluster.Member, g *heldLogs) { g.fail(1, call, err) }
	}
	for name, c := range map[string]struct {
		harm     func(t *testing.T, d *cluster.Member, g *heldLogs)
		outcome  string
		why      string
		attempts [2]int
	}{
		"moved": {fails("confirm", kgroup.ErrMoved), monitor.OutcomeMoved, "given the shard to another", soon},
		"no coordinator": {fails("confirm", errors.New("no answer")), monitor.OutcomeFailed,
			"ask the group for the shard's owner: no answer", soon},
		"fence":          {fails("fence", errors.New("does not end")), monitor.OutcomeFailed, "does not end", soon},
		"owner's record": {fails("commit", errors.New("no answer")), monitor.OutcomeFailed, "no answer", soon},
		"reading":        {fails("ledger", errors.New("no leader")), monitor.OutcomeFailed, "no leader", soon},
		"record refused": {fails("commit", &shardlog.RefusedError{Key: "owner", Err: errors.New("too large")}),
			monitor.OutcomeHalted, "refused value owner: too large", looks},
		"other genesis": {func(_ *testing.T, _ *cluster.Member, g *heldLogs) {
			g.change(1, func(l *heldLog) { l.ledger = g.shards[2].ledger })
		}, monitor.OutcomeHalted, "genesis: the ledger was created for shard 2, not for 1", looks},
		"forged value": {func(_ *testing.T, _ *cluster.Member, g *heldLogs) {
			g.change(1, func(l *heldLog) {
				l.state = append(l.state,
					shardlog.Record{Key: []byte("orders-0/checkpoint:0"), Value: make([]byte, 200)})
			})
		}, monitor.OutcomeHalted, "orders-0/checkpoint", looks},
		"lost ledger": {func(t *testing.T, d *cluster.Member, g *heldLogs) {
			w := shardlog.Witness{Genesis: sha256.Sum256(g.shards[1].ledger[0].Value), Lines: 7}
			fixtures.Must(t, os.WriteFile(filepath.Join(d.Witnesses(), "1"), []byte(w.String()), 0o600))
		}, monitor.OutcomeHalted, "the ledger has 0 lines, but the witness in the state directory refers to line 7",
			[2]int{4, 6}}, // each attempt takes two minutes
		"no witness": {func(t *testing.T, d *cluster.Member, g *heldLogs) {
			fixtures.Must(t, os.WriteFile(filepath.Join(d.Witnesses(), "1"), []byte("rubbish"), 0o600))
		}, monitor.OutcomeHalted, "not a witness of a ledger", [2]int{}}, // no log is requested
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, said func() string, _ func() time.Duration) {
				state := cluster.PostAcquiring
				if c.outcome == monitor.OutcomeHalted {
					state = cluster.PostHalted
				}
				was := *g.shards[1]
				c.harm(t, d, g)
				g.generations <- given(1, 0, 1)
				time.Sleep(span)
				synctest.Wait()
				if got := postsOf(d); got != "running "+state {
					t.Errorf("shards are %s", got)
				}
				missing := strings.Join(d.Status().Missing(), "\n")
				if !strings.Contains(missing, "shard 1 is "+state+": ") || !strings.Contains(missing, c.why) ||
					strings.Contains(missing, "shard 0") {
					t.Errorf("missing: %s", missing)
				}
				attempts := g.attempts(1)
				if attempts < c.attempts[0] || attempts > c.attempts[1] {
					t.Errorf("%d attempts, want %v", attempts, c.attempts)
				}
				if n := countOf(t, d, "shard_acquisitions_total", c.outcome); attempts > 0 &&
					(n < attempts-1 || n > attempts) || n == 0 {
					t.Errorf("%d attempts are counted as %s of %d", n, c.outcome, attempts)
				}
				if n := strings.Count(said(), "shard=1"); n != 1 {
					t.Errorf("%d lines of the log say it", n)
				}
				g.change(1, func(l *heldLog) {
					clear(l.fails)
					l.ledger = was.ledger
					l.state = slices.DeleteFunc(l.state,
						func(r shardlog.Record) bool { return strings.HasPrefix(string(r.Key), "orders") })
				})
				os.Remove(filepath.Join(d.Witnesses(), "1"))
				time.Sleep(4 * time.Minute)
				synctest.Wait()
				if got := postsOf(d); got != "running running" {
					t.Errorf("mended, shards are %s: %s", got, d.Status().Missing())
				}
			})
		})
	}
}

// TestKeepEnds: an instance must stop while it acquires a shard, and one of its calls does not return. For each such
// call, it stops at once and leaves the group.
func TestKeepEnds(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"confirm", "fence", "commit", "state", "ledger"} {
		t.Run(call, func(t *testing.T) {
			lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, _ func() string, end func() time.Duration) {
				begun := g.hang(1, call)
				g.generations <- given(1, 0, 1)
				<-begun
				synctest.Wait()
				if got := postsOf(d); got != "running acquiring" {
					t.Errorf("shards are %s", got)
				}
				if took := end(); took > time.Second {
					t.Errorf("it took %v", took)
				}
				if <-g.closed; len(d.Status().Shards) != 0 {
					t.Errorf("shards are %s", postsOf(d))
				}
			})
		})
	}
}

// TestKeepLost: a shard with a transaction of unknown outcome is lost and acquired again. A shard whose tasks do not
// end is given up after giveTime.
func TestKeepLost(t *testing.T) {
	t.Parallel()
	lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, _ func() string, _ func() time.Duration) {
		g.generations <- given(1, 0, 1)
		time.Sleep(50 * time.Minute)
		g.fail(1, "commit", errors.New("no answer")) // the hourly record of the owner
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if got := postsOf(d); got != "running acquiring" ||
			countOf(t, d, "shards_lost_total", monitor.ReasonUnknown) != 1 {
			t.Errorf("shards are %s", got)
		}
		g.change(1, func(l *heldLog) { clear(l.fails) })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := postsOf(d); got != "running running" || g.attempts(0) != 1 {
			t.Errorf("shards are %s; the one was acquired %d times", got, g.attempts(0))
		}
	})
	lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, _ func() string, _ func() time.Duration) {
		held, err := d.Acquire(t.Context(), 0, time.Second)
		fixtures.Must(t, err)
		defer held.Close()
		ctx, cancel := context.WithCancel(t.Context())
		begun := g.hang(0, "commit")
		go func() {
			<-begun
			cancel()
		}()
		err = cluster.Within{Holding: held, Ctx: ctx}.Update(context.Background(),
			map[string]shardlog.Value{"a": {Data: []byte("1")}}, nil, nil)
		if !errors.Is(err, cluster.ErrLost) || held.Err() == nil {
			t.Errorf("%v", err)
		}
	})
}

// TestKeepTurns: a few shards are acquired at a time; a shard that hangs delays the others only by some seconds.
func TestKeepTurns(t *testing.T) {
	t.Parallel()
	lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, _ func() string, _ func() time.Duration) {
		(*d.Turns()) = make(chan struct{}, 1)
		begun := g.hang(0, "fence")
		g.generations <- given(1, 0)
		<-begun
		g.generations <- given(2, 0, 1, 2)
		time.Sleep(cluster.TurnTime - time.Second)
		synctest.Wait()
		if g.attempts(1)+g.attempts(2) != 0 {
			t.Errorf("shards are %s before their turn", postsOf(d))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := postsOf(d); got != "acquiring running running" {
			t.Errorf("shards are %s", got)
		}
	})
}

// TestKeepNames: instances with the same name work, and the log warns once.
func TestKeepNames(t *testing.T) {
	t.Parallel()
	lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, said func() string, _ func() time.Duration) {
		for i, names := range [][]string{{"a", "b"}, {"a", "b", "b"}, {"a", "b", "b"}} {
			next := given(int32(i), 0)
			next.Members = nil
			for _, name := range names {
				next.Members = append(next.Members, kgroup.MemberInfo{Instance: name})
			}
			g.generations <- next
			synctest.Wait()
			if n := strings.Count(said(), "instance=b"); n != min(i, 1) {
				t.Errorf("%v: %d warnings", names, n)
			}
		}
	})
}

// TestKeepStorm: frequent rebalances neither stop a shard nor speed up the retries of one that fails; a shard that is
// given away and comes back runs again.
func TestKeepStorm(t *testing.T) {
	t.Parallel()
	lonely(t, func(t *testing.T, d *cluster.Member, g *heldLogs, _ func() string, _ func() time.Duration) {
		g.fail(1, "fence", errors.New("does not end"))
		for i := range int32(1000) {
			g.generations <- given(i, 0, 1)
			time.Sleep(60 * time.Millisecond)
		}
		synctest.Wait()
		if got := postsOf(d); got != "running acquiring" || g.attempts(0) != 1 || g.attempts(1) > 40 {
			t.Errorf("shards are %s, acquired %d and %d times", got, g.attempts(0), g.attempts(1))
		}
		g.change(1, func(l *heldLog) { clear(l.fails) })
		for i := range int32(50) { // away and back
			g.generations <- given(1000+2*i, 1)
			g.generations <- given(1001+2*i, 0)
		}
		g.generations <- given(2000, 0, 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := postsOf(d); got != "running running" ||
			countOf(t, d, "shards_lost_total", monitor.ReasonUnknown) != 0 {
			t.Errorf("shards are %s", got)
		}
		if n := g.open(); n != 2 {
			t.Errorf("%d logs are open", n)
		}
	})
}
