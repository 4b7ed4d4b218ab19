package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/state"
)

// killStream has small steps, so that a daemon spends most of its time in commits.
var killStream = fixtures.With(fixtures.OrdersStream, "step   = 100", "step = 20")

// feeder appends records to the input slowly, until it is stopped.
type feeder struct {
	stop context.CancelFunc
	done sync.WaitGroup
	fed  int
}

func feedOn(r *streamtest.Rig) *feeder { return feedAt(r, 4*time.Millisecond, 25) }

// feedAt appends n records, then pauses, and repeats.
func feedAt(r *streamtest.Rig, pause time.Duration, n int) *feeder {
	ctx, stop := context.WithCancel(context.Background())
	f := &feeder{stop: stop}
	// The feeder has its own client, because a test may kill the broker.
	client := fixtures.Dial(r.T, r.Addr)
	f.done.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var list []kafka.Message
			for range n {
				list = append(list, kafka.Message{Value: r.RecordOf(f.fed + len(list)), Time: time.UnixMilli(1)})
			}
			// Stopping the feeder does not interrupt a request: its records could arrive after the test has counted the
			// steps.
			sending, cancel := context.WithTimeout(context.Background(), time.Minute)
			if _, err := client.Produce(sending, "orders", 0, list); err == nil {
				f.fed += len(list)
			}
			cancel()
		}
	})
	return f
}

func (f *feeder) end() {
	f.stop()
	f.done.Wait()
}

func specOf(r *streamtest.Rig, role string, fetch int) streamtest.ChildSpec {
	r.Commit = "0s"
	return streamtest.ChildSpec{Role: role, Config: string(r.Text()), Seed: r.Seed, Real: r.Real, Fetch: fetch}
}

// stepsOf returns the number of complete steps in the input.
func stepsOf(r *streamtest.Rig, length int64) uint64 {
	r.T.Helper()
	c := fixtures.Dial(r.T, r.Addr)
	end, err := c.End(context.Background(), "orders", 0)
	if err != nil {
		r.T.Fatal(err)
	}
	return uint64(end / length)
}

// interruptions counts kills by the work that they interrupted.
type interruptions struct {
	kills     int
	inCommit  int // a commit was being written
	unsent    int // a commit was durable, and its releases were not published
	unacked   int // releases were published, and no later commit recorded that
	lastSeen  uint64
	nextInOut int64
	window    time.Duration // kills come at most this long after the start, see killLoop
}

// note examines the state after a kill.
func (i *interruptions) note(t testing.TB, r *streamtest.Rig) {
	t.Helper()
	i.kills++
	if _, err := os.Stat(r.File(state.TemporaryName)); err == nil {
		i.inCommit++
	}
	var cp *state.Checkpoint
	data, err := os.ReadFile(r.File(state.CheckpointName))
	if errors.Is(err, fs.ErrNotExist) { // the daemon had not written its first one
		cp = &state.Checkpoint{}
	} else if cp, err = state.ParseCheckpoint(data); err != nil {
		t.Fatalf("after kill %d: %v", i.kills, err)
	}
	if err := r.Client.ReadBack(context.Background(), "orders.dp", 0, i.nextInOut, func(rec *kafka.Record) error {
		if _, _, step, ok := core.ParseIdentity(rec.Key); ok {
			i.lastSeen = max(i.lastSeen, step)
		}
		i.nextInOut = rec.Offset + 1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if i.lastSeen > cp.Step {
		t.Fatalf("after kill %d: step %d is published, the last commit is of step %d", i.kills, i.lastSeen, cp.Step)
	}
	if n := len(cp.Outbox); n > 0 {
		// Both may be true: some of several releases were published.
		if cp.Outbox[n-1].Step > i.lastSeen {
			i.unsent++
		}
		if cp.Outbox[0].Step <= i.lastSeen {
			i.unacked++
		}
	}
}

// killLoop starts and kills daemons until it has killed the given number. The moment of a kill is drawn from a window
// after the start. If hit is set, the window grows when a daemon is killed before it has published anything, which
// happens on a busy machine, and shrinks again later.
func killLoop(t testing.TB, r *streamtest.Rig, spec streamtest.ChildSpec, rng *rand.Rand, kills int,
	hit *interruptions) {
	t.Helper()
	const shortest, longest = 37 * time.Millisecond, 500 * time.Millisecond
	window := shortest
	if hit != nil {
		window = max(window, hit.window)
	}
	for range kills {
		p := streamtest.Spawn(t, spec).Up()
		// The kill comes at a random moment.
		time.Sleep(3*time.Millisecond + time.Duration(rng.Int64N(int64(window))))
		p.Kill()
		if hit == nil {
			continue
		}
		before := hit.lastSeen
		hit.note(t, r)
		if hit.lastSeen == before {
			window = min(window*5/4, longest)
		} else {
			window = max(window*4/5, shortest)
		}
		hit.window = window
	}
}

// finish runs a daemon until everything is published.
func finish(r *streamtest.Rig, steps uint64) {
	r.T.Helper()
	r.Commit = "10ms"
	x := r.Start()
	x.Published(steps)
	x.End()
}

// killsOf returns the number of kills in a test: few or, in the slow job, many.
func killsOf(few, many int) int {
	if os.Getenv("STREAMDP_SLOW") != "" {
		return many
	}
	return few
}

// TestKill kills the daemon 15 times at random moments, 200 times in the slow job, and more often if no kill hit an
// important moment. No step has two different releases, none is missing, and all equal those of an uninterrupted run. A
// published release is seldom sent again, because a start finds it in the output.
func TestKill(t *testing.T) {
	t.Parallel()
	const seed = 20
	kills := killsOf(15, 200)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := streamtest.NewRig(t, killStream)
	var hit interruptions
	f := feedOn(r)
	missed := func() bool { return hit.inCommit == 0 || hit.unsent == 0 || hit.unacked == 0 }
	for hit.kills < kills || missed() && hit.kills < 800 {
		killLoop(t, r, specOf(r, "daemon", 16<<10), rng, kills, &hit)
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.History("orders.dp")
	want := r.Uninterrupted(steps)
	v.Equals(t, want)
	t.Logf(
		"%d kills, %d steps: %d in the middle of writing a commit, %d between a commit and its publication, %d "+
			"between that and the next commit; %d releases published again",
		hit.kills, v.Steps, hit.inCommit, hit.unsent, hit.unacked, v.Duplicates)
	if v.Steps != steps || steps < 250 {
		t.Errorf("%d steps, the input has %d", v.Steps, steps)
	}
	if missed() {
		t.Errorf("the kills hit no important moment: %+v", hit)
	}
}

// TestKillNaive is the control: it runs a naive loop under the same kills and the same checker. The checker must find a
// fault; otherwise it does not work.
func TestKillNaive(t *testing.T) {
	t.Parallel()
	const seed = 21
	kills := killsOf(20, 60)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := streamtest.NewRig(t, killStream)
	if err := os.MkdirAll(filepath.Join(r.Dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Client.CreateTopic(t.Context(), "orders.dp", 1, nil); err != nil {
		t.Fatal(err)
	}
	f := feedOn(r)
	// On a busy machine every attempt may be killed before it has published a release. So attempts run longer and
	// longer until some have published.
	var v streamtest.Verdict
	for window := 40 * time.Millisecond; len(v.Forks) == 0 &&
		window < fixtures.Patience/time.Duration(kills); window *= 4 {
		for range kills {
			p := streamtest.Spawn(t, specOf(r, "naive", 16<<10)).Up()
			time.Sleep(time.Duration(rng.Int64N(int64(window))))
			p.Kill()
		}
		v = streamtest.Judge(t, r.Output("orders.dp"))
	}
	f.end()
	t.Logf("%d kills at a time, %d steps: %d of them with two different releases, %d published again", kills, v.Steps,
		len(v.Forks), v.Duplicates)
	if len(v.Forks) == 0 {
		t.Error("the checker finds nothing wrong with fresh noise in every attempt")
	}
}

// TestKillCopies runs two daemons on copies of one state directory, with different fetch sizes, into one output, and
// kills both. They publish the same bytes.
func TestKillCopies(t *testing.T) {
	t.Parallel()
	steps, duplicates := killTwo(t, streamtest.NewRig(t, killStream), 22, killsOf(12, 25))
	if duplicates < int(steps)/10 {
		t.Errorf("only %d duplicates of %d steps: the copies did not run at the same time", duplicates, steps)
	}
}

func killTwo(t *testing.T, r *streamtest.Rig, seed uint64, kills int) (steps uint64, duplicates int) {
	f := feedOn(r)
	streamtest.Spawn(t, specOf(r, "daemon", 16<<10)).Up().Kill()
	s := r.Sibling(r.Toml)
	r.CopyState(s)
	var wg sync.WaitGroup
	for i, x := range []*streamtest.Rig{r, s} {
		wg.Go(func() {
			killLoop(t, x, specOf(x, "daemon", []int{16 << 10, 5 << 10}[i]),
				rand.New(rand.NewPCG(seed, uint64(i))), kills, nil)
		})
	}
	wg.Wait()
	// On a busy machine one copy is dead or behind while the other publishes. So the log grows by a quarter while both
	// are down, and then both publish that.
	for published := r.History("orders.dp").Steps; stepsOf(r, 20) < published+published/4; {
		time.Sleep(10 * time.Millisecond)
	}
	f.end()
	steps = stepsOf(r, 20)
	for _, x := range []*streamtest.Rig{r, s} {
		wg.Go(func() { finish(x, steps) })
	}
	wg.Wait()
	v := r.History("orders.dp")
	want := r.Uninterrupted(steps)
	v.Equals(t, want)
	t.Logf("%d kills of two copies, %d steps, %d releases published again", 2*kills, v.Steps, v.Duplicates)
	return steps, v.Duplicates
}

// TestKillCopiesRolling kills two copies of a state whose epochs roll over every few steps, each with its own secrets.
// A copy halts after it has published one release that the other did not make, so only the first release of an epoch
// can have two values. A copy also halts if it was killed while it opened an epoch that the other has begun; see
// TestCopyCutOff.
func TestKillCopiesRolling(t *testing.T) {
	t.Parallel()
	const seed = 25
	kills := killsOf(10, 20)
	rolling := fixtures.With(killStream, "step = 20", "step = 20\nhorizon = 8\non_horizon = \"rollover\"")
	r := streamtest.NewRig(t, rolling)
	r.Real = true
	f := feedOn(r)
	streamtest.Spawn(t, specOf(r, "daemon", 16<<10)).Up().Kill()
	s := r.Sibling(rolling)
	r.CopyState(s)
	var wg sync.WaitGroup
	var halted atomic.Int32
	var ends [2]string
	stopped := func(p *streamtest.Process) bool {
		log := p.Stderr.String()
		return strings.Contains(log, failure.OutputAhead) || strings.Contains(log, fixtures.MayHaveRun)
	}
	for i, x := range []*streamtest.Rig{r, s} {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for range kills {
				p := streamtest.Spawn(t, specOf(x, "daemon", 16<<10))
				// The kill comes at a random moment.
				time.Sleep(time.Duration(50+rng.IntN(150)) * time.Millisecond)
				p.Cmd.Process.Kill()
				<-p.Done
				if stopped(p) {
					halted.Add(1)
				}
			}
			// On a busy machine both copies may be killed too early. So both run until one of them has halted.
			p := streamtest.Spawn(t, specOf(x, "daemon", 16<<10))
			for late := time.Now().Add(fixtures.Patience); halted.Load() == 0 &&
				time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
				if stopped(p) {
					halted.Add(1)
				}
			}
			p.Cmd.Process.Kill()
			<-p.Done
			ends[i] = p.Stderr.String()
		})
	}
	wg.Wait()
	f.end()
	v := streamtest.Judge(t, r.Output("orders.dp"))
	for _, key := range v.Forks {
		if !strings.HasSuffix(key, "/1") {
			t.Errorf("release %s has two values", key)
		}
	}
	if halted.Load() == 0 {
		for i, end := range ends {
			t.Logf("copy %d: ...%s", i, end[max(0, len(end)-2000):])
		}
		t.Error("no copy halted: they never worked in different epochs")
	}
	t.Logf("%d kills of two copies, %d halts, %d releases, %d with two values", 2*kills, halted.Load(),
		len(v.Bytes), len(v.Forks))
}

// TestKillBroker kills the broker too. Acknowledged releases exist when it comes back, and daemons wait for it.
func TestKillBroker(t *testing.T) {
	t.Parallel()
	const seed = 23
	rounds := killsOf(3, 6)
	rng := rand.New(rand.NewPCG(seed, 0))
	broker := streamtest.ChildSpec{Role: "broker", Data: fixtures.ShortDir(t), Topics: []string{"orders"}}
	b := streamtest.Spawn(t, broker).Up()
	if _, err := fmt.Sscanf(b.Addr[strings.LastIndexByte(b.Addr, ':')+1:], "%d", &broker.Port); err != nil {
		t.Fatal(err)
	}
	r := streamtest.NewRigAt(t, nil, b.Addr, killStream)
	spec := specOf(r, "daemon", 16<<10)
	f := feedOn(r)
	for range rounds {
		p := streamtest.Spawn(t, spec).Up()
		time.Sleep(time.Duration(10+rng.IntN(60)) * time.Millisecond)
		b.Kill()
		killLoopDown(t, p, rng)
		b = streamtest.Spawn(t, broker).Up()
		killLoop(t, r, spec, rng, 4, nil)
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.History("orders.dp")
	v.Equals(t, r.Uninterrupted(steps))
	t.Logf("%d kills of the broker, %d of the daemon, %d steps, %d releases published again", rounds, 5*rounds, v.Steps,
		v.Duplicates)
	if steps < 50 {
		t.Errorf("only %d steps", steps)
	}
}

// killLoopDown kills, in half of its calls, a daemon that has lost its broker.
func killLoopDown(t testing.TB, p *streamtest.Process, rng *rand.Rand) {
	t.Helper()
	time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
	p.Kill()
}

// TestTerminate: SIGTERM ends the daemon with exit code 0. All closed steps are published, and the next run repeats
// nothing.
func TestTerminate(t *testing.T) {
	t.Parallel()
	rounds := killsOf(6, 12)
	rng := rand.New(rand.NewPCG(24, 0))
	r := streamtest.NewRig(t, killStream)
	f := feedOn(r)
	for range rounds {
		p := streamtest.Spawn(t, specOf(r, "daemon", 16<<10)).Up()
		time.Sleep(time.Duration(5+rng.IntN(50)) * time.Millisecond)
		if code := p.Terminate(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, p.Stderr)
		}
		data, err := os.ReadFile(r.File(state.CheckpointName))
		if err != nil {
			t.Fatal(err)
		}
		cp, err := state.ParseCheckpoint(data)
		if err != nil {
			t.Fatal(err)
		}
		v := streamtest.Judge(t, outputIfAny(r, "orders.dp"))
		v.Faultless(t)
		if v.Steps != cp.Step {
			t.Errorf("step %d is committed and step %d published", cp.Step, v.Steps)
		}
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.History("orders.dp")
	v.Equals(t, r.Uninterrupted(steps))
	if v.Steps != steps || v.Duplicates > 0 {
		t.Errorf("%d steps of %d, %d published again in %d runs", v.Steps, steps, v.Duplicates, rounds)
	}
}
