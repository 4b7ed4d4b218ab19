package stream

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
	"github.com/streamdp/streamdp/stream/core"
)

// killStream has small steps, so that most of a daemon's life is commits.
var killStream = with(ordersStream, "step   = 100", "step = 20")

// feeder appends records to the input slowly, until it is stopped.
type feeder struct {
	stop context.CancelFunc
	done sync.WaitGroup
	fed  int
}

func feedOn(r *rig) *feeder { return feedAt(r, 4*time.Millisecond, 25) }

// feedAt appends n records every pause.
func feedAt(r *rig, pause time.Duration, n int) *feeder {
	ctx, stop := context.WithCancel(context.Background())
	f := &feeder{stop: stop}
	// It has a client of its own, whose broker may die.
	client := dial(r.t, r.addr)
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
				list = append(list, kafka.Message{Value: r.recordOf(f.fed + len(list)), Time: time.UnixMilli(1)})
			}
			// The end does not interrupt it: what is sent would come in later, after
			// the steps have been counted.
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

func specOf(r *rig, role string, fetch int) childSpec {
	r.commit = "0s"
	return childSpec{Role: role, Config: string(r.text()), Seed: r.seed, Real: r.real, Fetch: fetch}
}

// stepsOf returns the whole steps in the input.
func stepsOf(r *rig, length int64) uint64 {
	r.t.Helper()
	c := dial(r.t, r.addr)
	_, _, end, err := c.Offsets(context.Background(), "orders", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return uint64(end / length)
}

// interruptions counts what kills hit.
type interruptions struct {
	kills     int
	inCommit  int // a commit was being written
	unsent    int // a commit was durable, and its releases had not left
	unacked   int // they had left, and no later commit knew
	lastSeen  uint64
	nextInOut int64
	window    time.Duration // kills come at most that long after the start, see killLoop
}

// note looks at what a kill has left.
func (i *interruptions) note(t testing.TB, r *rig) {
	t.Helper()
	i.kills++
	if _, err := os.Stat(r.file(temporaryName)); err == nil {
		i.inCommit++
	}
	var cp *checkpoint
	data, err := os.ReadFile(r.file(checkpointName))
	if errors.Is(err, fs.ErrNotExist) { // the daemon had not come to its first one
		cp = &checkpoint{}
	} else if cp, err = parseCheckpoint(data); err != nil {
		t.Fatalf("after kill %d: %v", i.kills, err)
	}
	if err := r.client.ReadBack(context.Background(), "orders.dp", 0, i.nextInOut, func(rec *kafka.Record) error {
		if _, _, step, ok := core.ParseIdentity(rec.Key); ok {
			i.lastSeen = max(i.lastSeen, step)
		}
		i.nextInOut = rec.Offset + 1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if i.lastSeen > cp.step {
		t.Fatalf("after kill %d: step %d is published, the last commit is of step %d", i.kills, i.lastSeen, cp.step)
	}
	if n := len(cp.outbox); n > 0 {
		// Both may hold: of several releases some had left.
		if cp.outbox[n-1].Step > i.lastSeen {
			i.unsent++
		}
		if cp.outbox[0].Step <= i.lastSeen {
			i.unacked++
		}
	}
}

// killLoop starts and kills daemons until the number is reached. The moment of a kill is
// drawn from a window after the start. With hit, the window grows while the daemon is
// killed before it has published anything, as on a busy machine, and shrinks again.
func killLoop(t testing.TB, r *rig, spec childSpec, rng *rand.Rand, kills int, hit *interruptions) {
	t.Helper()
	const shortest, longest = 37 * time.Millisecond, 500 * time.Millisecond
	window := shortest
	if hit != nil {
		window = max(window, hit.window)
	}
	for range kills {
		p := spawn(t, spec).up()
		time.Sleep(3*time.Millisecond + time.Duration(rng.Int64N(int64(window)))) // the moment of the kill, nothing waits for it
		p.kill()
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
func finish(r *rig, steps uint64) {
	r.t.Helper()
	r.commit = "10ms"
	x := r.start()
	x.published(steps)
	x.end()
}

// killsOf returns how often a test kills: few times, or many in the slow job.
func killsOf(few, many int) int {
	if os.Getenv("STREAMDP_SLOW") != "" {
		return many
	}
	return few
}

// TestKill kills the daemon 15 times at random moments, 200 times in the slow job, and more
// where none of them hit a moment that matters. Whatever was under way: no step has two different releases,
// none is missing, and all are those of a run without interruption. A release that had
// left is seldom sent again: a start finds it in the output.
func TestKill(t *testing.T) {
	t.Parallel()
	const seed = 20
	kills := killsOf(15, 200)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, killStream)
	var hit interruptions
	f := feedOn(r)
	missed := func() bool { return hit.inCommit == 0 || hit.unsent == 0 || hit.unacked == 0 }
	for hit.kills < kills || missed() && hit.kills < 800 {
		killLoop(t, r, specOf(r, "daemon", 16<<10), rng, kills, &hit)
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.history("orders.dp")
	want := r.uninterrupted(steps)
	v.equals(t, want)
	t.Logf("%d kills, %d steps: %d in the middle of writing a commit, %d between a commit and its publication, %d between that and the next commit; %d releases published again",
		hit.kills, v.steps, hit.inCommit, hit.unsent, hit.unacked, v.duplicates)
	if v.steps != steps || steps < 250 {
		t.Errorf("%d steps, the input has %d", v.steps, steps)
	}
	if missed() {
		t.Errorf("the kills missed: %+v", hit)
	}
}

// TestKillNaive is the control: the usual loop under the same kills and the
// same checker. If it passes, the checker is blind.
func TestKillNaive(t *testing.T) {
	t.Parallel()
	const seed = 21
	kills := killsOf(20, 60)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newRig(t, killStream)
	if err := os.MkdirAll(filepath.Join(r.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.client.CreateTopic(t.Context(), "orders.dp", 1, nil); err != nil {
		t.Fatal(err)
	}
	f := feedOn(r)
	// On a machine with more to do no attempt comes as far as a release before it is killed. So each is given longer
	// until some have.
	var v verdict
	for window := 40 * time.Millisecond; len(v.forks) == 0 && window < patience/time.Duration(kills); window *= 4 {
		for range kills {
			p := spawn(t, specOf(r, "naive", 16<<10)).up()
			time.Sleep(time.Duration(rng.Int64N(int64(window))))
			p.kill()
		}
		v = judge(t, r.output("orders.dp"))
	}
	f.end()
	t.Logf("%d kills at a time, %d steps: %d of them with two different releases, %d published again", kills, v.steps, len(v.forks), v.duplicates)
	if len(v.forks) == 0 {
		t.Error("the checker finds nothing wrong with fresh noise in every attempt")
	}
}

// TestKillCopies runs two daemons on copies of one state directory, with other
// sizes of fetches, into one output, and kills both. They publish the same
// bytes.
func TestKillCopies(t *testing.T) {
	t.Parallel()
	steps, duplicates := killTwo(t, newRig(t, killStream), 22, killsOf(12, 25))
	if duplicates < int(steps)/10 {
		t.Errorf("only %d duplicates of %d steps: the copies were not at work at the same time", duplicates, steps)
	}
}

func killTwo(t *testing.T, r *rig, seed uint64, kills int) (steps uint64, duplicates int) {
	f := feedOn(r)
	spawn(t, specOf(r, "daemon", 16<<10)).up().kill()
	s := r.sibling(r.toml)
	r.copyState(s)
	var wg sync.WaitGroup
	for i, x := range []*rig{r, s} {
		wg.Go(func() {
			killLoop(t, x, specOf(x, "daemon", []int{16 << 10, 5 << 10}[i]), rand.New(rand.NewPCG(seed, uint64(i))), kills, nil)
		})
	}
	wg.Wait()
	// On a busy machine one copy is dead or behind while the other publishes. So the log
	// grows by a quarter while both are down, and then both publish that.
	for published := r.history("orders.dp").steps; stepsOf(r, 20) < published+published/4; {
		time.Sleep(10 * time.Millisecond)
	}
	f.end()
	steps = stepsOf(r, 20)
	for _, x := range []*rig{r, s} {
		wg.Go(func() { finish(x, steps) })
	}
	wg.Wait()
	v := r.history("orders.dp")
	want := r.uninterrupted(steps)
	v.equals(t, want)
	t.Logf("%d kills of two copies, %d steps, %d releases published again", 2*kills, v.steps, v.duplicates)
	return steps, v.duplicates
}

// TestKillCopiesRolling kills two copies of a state whose epochs roll over every few
// steps, each with secrets of its own. A copy halts after the first release that the
// other one did not make: no later step of an epoch has two values. One that was killed when it
// opened an epoch that the other has begun halts too, see TestCopyCutOff.
func TestKillCopiesRolling(t *testing.T) {
	t.Parallel()
	const seed = 25
	kills := killsOf(10, 20)
	rolling := with(killStream, "step = 20", "step = 20\nhorizon = 8\non_horizon = \"rollover\"")
	r := newRig(t, rolling)
	r.real = true
	f := feedOn(r)
	spawn(t, specOf(r, "daemon", 16<<10)).up().kill()
	s := r.sibling(rolling)
	r.copyState(s)
	var wg sync.WaitGroup
	var halted atomic.Int32
	var ends [2]string
	stopped := func(p *process) bool {
		log := p.stderr.String()
		return strings.Contains(log, haltOutput) || strings.Contains(log, mayHaveRun)
	}
	for i, x := range []*rig{r, s} {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			for range kills {
				p := spawn(t, specOf(x, "daemon", 16<<10))
				time.Sleep(time.Duration(50+rng.IntN(150)) * time.Millisecond) // the moment of the kill, nothing waits for it
				p.cmd.Process.Kill()
				<-p.done
				if stopped(p) {
					halted.Add(1)
				}
			}
			// On a busy machine a copy is killed before it has come so far. So both work on
			// until one of them has halted.
			p := spawn(t, specOf(x, "daemon", 16<<10))
			for late := time.Now().Add(patience); halted.Load() == 0 && time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
				if stopped(p) {
					halted.Add(1)
				}
			}
			p.cmd.Process.Kill()
			<-p.done
			ends[i] = p.stderr.String()
		})
	}
	wg.Wait()
	f.end()
	v := judge(t, r.output("orders.dp"))
	for _, key := range v.forks {
		if !strings.HasSuffix(key, "/1") {
			t.Errorf("release %s has two values", key)
		}
	}
	if halted.Load() == 0 {
		for i, end := range ends {
			t.Logf("copy %d: ...%s", i, end[max(0, len(end)-2000):])
		}
		t.Error("no copy halted: they never were at work in different epochs")
	}
	t.Logf("%d kills of two copies, %d halts, %d releases, of which %d have two values", 2*kills, halted.Load(), len(v.bytes), len(v.forks))
}

// TestKillBroker kills the broker too. What it had acknowledged is there when it
// comes back, and daemons wait for it.
func TestKillBroker(t *testing.T) {
	t.Parallel()
	const seed = 23
	rounds := killsOf(3, 6)
	rng := rand.New(rand.NewPCG(seed, 0))
	broker := childSpec{Role: "broker", Data: shortDir(t), Topics: []string{"orders"}}
	b := spawn(t, broker).up()
	if _, err := fmt.Sscanf(b.addr[strings.LastIndexByte(b.addr, ':')+1:], "%d", &broker.Port); err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, nil, b.addr, killStream)
	spec := specOf(r, "daemon", 16<<10)
	f := feedOn(r)
	for range rounds {
		p := spawn(t, spec).up()
		time.Sleep(time.Duration(10+rng.IntN(60)) * time.Millisecond)
		b.kill()
		killLoopDown(t, p, rng)
		b = spawn(t, broker).up()
		killLoop(t, r, spec, rng, 4, nil)
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.history("orders.dp")
	v.equals(t, r.uninterrupted(steps))
	t.Logf("%d kills of the broker, %d of the daemon, %d steps, %d releases published again", rounds, 5*rounds, v.steps, v.duplicates)
	if steps < 50 {
		t.Errorf("only %d steps", steps)
	}
}

// killLoopDown kills a daemon that has lost its broker, half of the time.
func killLoopDown(t testing.TB, p *process, rng *rand.Rand) {
	t.Helper()
	time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
	p.kill()
}

// TestTerminate: SIGTERM ends the daemon with 0, everything that was closed is
// published, and the next run repeats nothing.
func TestTerminate(t *testing.T) {
	t.Parallel()
	rounds := killsOf(6, 12)
	rng := rand.New(rand.NewPCG(24, 0))
	r := newRig(t, killStream)
	f := feedOn(r)
	for range rounds {
		p := spawn(t, specOf(r, "daemon", 16<<10)).up()
		time.Sleep(time.Duration(5+rng.IntN(50)) * time.Millisecond)
		if code := p.terminate(); code != 0 {
			t.Fatalf("exit code %d\n%s", code, p.stderr)
		}
		data, err := os.ReadFile(r.file(checkpointName))
		if err != nil {
			t.Fatal(err)
		}
		cp, err := parseCheckpoint(data)
		if err != nil {
			t.Fatal(err)
		}
		v := judge(t, outputIfAny(r, "orders.dp"))
		v.faultless(t)
		if v.steps != cp.step {
			t.Errorf("step %d is committed and step %d published", cp.step, v.steps)
		}
	}
	f.end()
	steps := stepsOf(r, 20)
	finish(r, steps)
	v := r.history("orders.dp")
	v.equals(t, r.uninterrupted(steps))
	if v.steps != steps || v.duplicates > 0 {
		t.Errorf("%d steps of %d, %d published again in %d runs", v.steps, steps, v.duplicates, rounds)
	}
}
