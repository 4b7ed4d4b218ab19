package stream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/stream/core"
)

// fourStreams are one of each mechanism on one topic, whose epochs end after a few steps
// and are followed by others.
var fourStreams = func() string {
	stream := func(name, more, table string) string {
		s := with(ordersStream, "step   = 100\n", more+"on_horizon = \"rollover\"\n", "[stream.orders.moments]\nclip = 1.0\n", table,
			`"orders.dp"`, `"`+name+`.dp"`, "limit_epsilon = 3.0", "limit_epsilon = 20.0")
		return strings.ReplaceAll(s, "stream.orders", "stream."+name)
	}
	return stream("orders", "step = 20\nhorizon = 3\n", "[stream.orders.moments]\nclip = 1.0\n") +
		stream("slopes", "horizon = 4\n", "[stream.orders.sgd]\nmethod = \"amb\"\ntarget = \"weight\"\nclip_x = 2.0\nradius = 5.0\namb = { curvature = 1.0, batch = 20, bootstrap = 20 }\n") +
		stream("windows", "horizon = 2\n", "[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 2.0\nclip_y = 1.0\nwindow = 40\n") +
		stream("model", "step = 20\nhorizon = 3\n", "[stream.orders.adam]\nmode = \"model\"\nclip = 1.0\nrate = 0.05\nmodel = { loss = \"linear\", target = \"weight\" }\n")
}()

var fourTasks = []string{"orders", "slopes", "windows", "model"}

// kills is how many daemons such a test kills: a few, or STREAMDP_KILLS.
func kills(t testing.TB) int {
	t.Helper()
	text := os.Getenv("STREAMDP_KILLS")
	if text == "" {
		return 12
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// kept is the rig's configuration with secrets that are kept, so that all that was
// published can be worked out again.
func kept(r *rig) string {
	return strings.Replace(string(r.text()), "[http]\n", "epoch_secret_retention = \"100h\"\n[http]\n", 1)
}

// killSome starts and kills daemons, and returns how many it killed. It ends early where a
// daemon has ended by itself because every task of it halted, if that may be.
func killSome(t testing.TB, spec childSpec, rng *rand.Rand, kills int, mayHalt bool, feed func()) (killed int) {
	t.Helper()
	for i := range kills {
		feed()
		p := spawn(t, spec)
		up := make(chan error, 1)
		go func() {
			_, err := p.lines.ReadString('\n')
			up <- err
		}()
		err := error(nil)
		select {
		case err = <-up:
		case <-time.After(time.Second): // its first task has halted, others run
		}
		if err == nil {
			time.Sleep(3*time.Millisecond + time.Duration(rng.IntN(120_000))*time.Microsecond) // the moment of the kill, nothing waits for it
		}
		p.cmd.Process.Kill()
		<-p.done
		switch {
		case p.cmd.ProcessState.ExitCode() < 0:
		case mayHalt && strings.Contains(p.stderr.String(), ErrHalted.Error()):
			return i
		default:
			t.Errorf("after %d kills the daemon ended by itself: %v\n%s", i, p.err, p.stderr)
			return i
		}
	}
	return kills
}

// epochsFollow fails unless the epochs of a history cover the log from its begin on
// without a gap and without a record in two.
func epochsFollow(v *verdict, t testing.TB, what string) (epochs int, end int64) {
	t.Helper()
	type span struct {
		epoch      uint64
		first, end int64
	}
	spans := map[uint64]span{}
	for _, p := range v.byKey {
		rel := p.parse(t)
		s := spans[p.epoch]
		spans[p.epoch] = span{p.epoch, rel.Covers[0], max(s.end, rel.Offsets[1])}
	}
	all := make([]span, 0, len(spans))
	for _, s := range spans {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.epoch, b.epoch) })
	for _, s := range all {
		if s.first != end {
			t.Errorf("%s: epoch %d begins at offset %d, the one before ended at %d", what, s.epoch, s.first, end)
		}
		end = s.end
	}
	return len(all), end
}

// TestKillsOfAll kills a daemon with a task of every mechanism at random moments, in the
// middle of steps, commits, publications, closings and openings. No key has two
// releases, none is missing, the epochs of a task follow each other without a gap, no
// record is charged for two epochs of a task, and an auditor who works every
// release out again finds the same bytes.
func TestKillsOfAll(t *testing.T) {
	t.Parallel()
	// A start reads the whole ledger: it must not grow for ever.
	const round = 500
	n := kills(t)
	for i := uint64(0); n > 0 && !t.Failed(); i++ {
		killAll(t, i, min(n, round))
		n -= round
	}
}

func killAll(t *testing.T, round uint64, n int) {
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	must(t, err)
	defer b.Close()
	r := newRigAt(t, b, b.Addr(), fourStreams)
	r.commit = "0s"
	text := kept(r)
	spec := childSpec{Role: "daemon", Config: text, Seed: r.seed, Fetch: 16 << 10}
	fed := 0
	begun := time.Now()
	killSome(t, spec, rand.New(rand.NewPCG(31, round)), n, false, func() {
		// As much as the slowest task gets done: what is left must be read in the end.
		if fed-slowest(r) < 300 {
			r.produce(fed, 120)
			fed += 120
		}
	})
	took := time.Since(begun)
	_, _, end, err := dial(t, r.addr).Offsets(t.Context(), "orders", 0)
	must(t, err)
	cfg, err := config.Parse("kept.toml", []byte(text))
	must(t, err)
	keep := func(o *Options) { o.Config.State.EpochSecretRetention = cfg.State.EpochSecretRetention }
	x := r.start(keep)
	x.until("all is published", func(TaskStatus) bool {
		for _, s := range x.d.Status() {
			if s.State != stateRunning || s.NextOffset < end || s.Outbox > 0 || s.Comparing {
				return false
			}
		}
		// The records of a window are read before its refit.
		covered := int64(0)
		for _, p := range outputIfAny(r, "windows.dp") {
			covered = max(covered, p.parse(t).Offsets[1])
		}
		return end-covered < 40
	})
	x.end()

	var said []string
	for _, name := range fourTasks {
		v := r.history(name + ".dp")
		epochs, last := epochsFollow(v, t, name)
		if end-last >= 40 {
			t.Errorf("%s: releases cover the log up to %d, which ends at %d", name, last, end)
		}
		a := Audit{Config: cfg, Key: InsecureKey(r.seed), Log: slog.New(slog.NewTextHandler(r.log, nil))}
		ctx, cancel := context.WithTimeout(context.Background(), patience+time.Duration(n)*time.Second)
		all, err := Verify(ctx, a, core.Task{Stream: name})
		cancel()
		must(t, err)
		verified := 0
		for _, e := range all {
			verified += e.Releases
			if e.Difference+e.Unverifiable != "" || e.Missing != 0 {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if verified != len(v.bytes) || verified == 0 {
			t.Errorf("%s: %d of %d releases were worked out again", name, verified, len(v.bytes))
		}
		said = append(said, fmt.Sprintf("%s: %d releases in %d epochs, %d sent again", name, len(v.bytes), epochs, v.duplicates))
	}
	voids := chargedOnce(r, t)
	t.Logf("%d kills in %v, %d offsets, %d openings that were void; %s", n, took.Round(time.Second), end, voids, strings.Join(said, "; "))
}

// slowest returns the least offset that a task has committed, 0 where one has no checkpoint.
func slowest(r *rig) int {
	least := math.MaxInt
	for _, name := range fourTasks {
		data, err := os.ReadFile(filepath.Join(r.dir, "state", "tasks", name+"-0", checkpointName))
		if err != nil {
			return 0
		}
		cp, err := parseCheckpoint(data)
		must(r.t, err)
		least = min(least, int(cp.position.Next))
	}
	return least
}

// chargedOnce fails unless the worst-off record has paid for one epoch of each task, and
// returns the number of openings that are void.
func chargedOnce(r *rig, t testing.TB) (voids int) {
	t.Helper()
	data, err := os.ReadFile(r.ledgerFile())
	must(t, err)
	l, err := parseLedger(data, newLedgerKey(InsecureKey(r.seed)))
	must(t, err)
	costs := map[string]dp.Cost{}
	var source core.Source
	var a dp.Adjacency
	for _, e := range l.entries {
		switch e.Kind {
		case kindVoid:
			voids++
		case kindOpen:
			costs[e.Stream], source, a = e.Cost, e.Source, e.Cost.Adjacency
		}
	}
	var list []dp.Cost
	for _, c := range costs {
		list = append(list, c)
	}
	want, err := dp.Compose(list...).Epsilon(1e-8)
	must(t, err)
	paid, err := l.charged(ofRecords(source), a, 1e-8, nil)
	must(t, err)
	got, err := paid.Epsilon(1e-8)
	must(t, err)
	if len(costs) != len(fourTasks) || !(got <= want*(1+1e-9) && got > 0) {
		t.Errorf("the worst-off record has paid ε = %g, an epoch of each of %d tasks costs %g", got, len(costs), want)
	}
	return voids
}

// conflicts returns the keys that have two releases. It fails where such a key is not the
// first release of its epoch: a copy must have halted before its second.
func conflicts(t testing.TB, list []published) (forks []string) {
	t.Helper()
	values := map[string][32]byte{}
	first := map[uint64]uint64{} // step of an epoch's first release
	of := map[string]published{}
	for _, p := range list {
		if s, ok := first[p.epoch]; !ok || p.step < s {
			first[p.epoch] = p.step
		}
		if was, ok := values[p.key]; ok && was != p.hash && !slices.Contains(forks, p.key) {
			forks = append(forks, p.key)
		}
		values[p.key], of[p.key] = p.hash, p
	}
	for _, key := range forks {
		if p := of[key]; p.step != first[p.epoch] {
			t.Errorf("release %s was published with two values, and is not the first of its epoch", key)
		}
	}
	return forks
}

// TestConflicts is the control of TestKillsOfCopies: its checker sees a copy that goes on.
func TestConflicts(t *testing.T) {
	t.Parallel()
	at := func(epoch, step uint64, value byte) published {
		return published{key: fmt.Sprint("orders/0/", epoch, "/", step), hash: [32]byte{value}, epoch: epoch, step: step}
	}
	same := []published{at(1, 1, 1), at(1, 1, 1), at(1, 2, 2), at(2, 2, 3), at(1, 2, 2)}
	if forks := conflicts(t, same); len(forks) > 0 {
		t.Errorf("%v", forks)
	}
	if forks := conflicts(t, append(same, at(2, 2, 4), at(2, 3, 5))); !slices.Equal(forks, []string{"orders/0/2/2"}) {
		t.Errorf("%v", forks)
	}
	var inner failures
	if forks := conflicts(&inner, append(same, at(2, 3, 4), at(2, 3, 5))); len(forks) != 1 || inner.n != 1 {
		t.Errorf("%v, %d complaints", forks, inner.n)
	}
}

// failures counts complaints.
type failures struct {
	testing.TB
	n int
}

func (*failures) Helper()                 {}
func (f *failures) Errorf(string, ...any) { f.n++ }

// TestKillsOfCopies kills two daemons that run at once on copies of one state and draw
// their secrets, with epochs that end every few steps. As long as the epochs of the copy
// last both publish the same bytes. Where each opens an epoch, one key at most has two
// releases, the first of that epoch: a copy has halted before its second.
func TestKillsOfCopies(t *testing.T) {
	t.Parallel()
	n, done, rounds, halts, releases := kills(t), 0, 0, 0, 0
	var all []string
	for done < n && !t.Failed() {
		rounds++
		k, h, l, forks := killCopies(t, uint64(rounds))
		done, halts, releases, all = done+k, halts+h, releases+l, append(all, forks...)
	}
	t.Logf("%d kills in %d rounds: %d releases, %d tasks of a copy halted, %d keys with two releases, each the first of its epoch", done, rounds, releases, halts, len(all))
	if halts == 0 {
		t.Error("no copy halted: they were not at work at the same time")
	}
}

func killCopies(t *testing.T, round uint64) (kills, halts, releases int, forks []string) {
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	must(t, err)
	defer b.Close()
	r := newRigAt(t, b, b.Addr(), fourStreams)
	r.commit = "0s"
	f := feedAt(r, 50*time.Millisecond, 10)
	spec := childSpec{Role: "daemon", Config: string(r.text()), Seed: r.seed, Real: true, Fetch: 16 << 10}
	p := spawn(t, spec).up()
	time.Sleep(200 * time.Millisecond) // somewhere in its life
	p.kill()
	s := r.sibling(fourStreams)
	r.copyState(s)
	var wg sync.WaitGroup
	var killed [2]int
	for i, c := range []*rig{r, s} {
		wg.Go(func() {
			spec := spec
			spec.Config, spec.Fetch = string(c.text()), []int{16 << 10, 5 << 10}[i]
			killed[i] = killSome(t, spec, rand.New(rand.NewPCG(32, 2*round+uint64(i))), 10, true, func() {})
		})
	}
	wg.Wait()
	f.end()
	_, _, end, err := dial(t, r.addr).Offsets(t.Context(), "orders", 0)
	must(t, err)
	halted := map[string]bool{}
	for _, c := range []*rig{r, s} {
		x := c.start(func(o *Options) { o.InsecureSeed = nil })
		settled := func() bool {
			for _, s := range x.d.Status() {
				if s.State != stateHalted && (s.State != stateRunning || s.NextOffset < end || s.Outbox > 0 || s.Comparing) {
					return false
				}
			}
			return true
		}
		x.until("every task has halted or caught up", func(TaskStatus) bool { return settled() })
		for _, s := range x.d.Status() {
			if s.State == stateHalted {
				halts++
				halted[s.Stream] = true
				// A crash inside an opening is not voided where the output holds releases of
				// that epoch, the other copy's.
				if s.Reason != haltOutput && !(s.Reason == haltState && strings.Contains(s.Message, "the epoch may have run")) {
					t.Errorf("%s halted with %s: %s", s.Stream, s.Reason, s.Message)
				}
			}
		}
		x.stop()
		<-x.done
	}
	for _, name := range fourTasks {
		list := r.output(name + ".dp")
		releases += len(list)
		found := conflicts(t, list)
		if len(found) > 0 && !halted[name] {
			t.Errorf("%s: %v have two releases, and no copy halted", name, found)
		}
		forks = append(forks, found...)
	}
	return 1 + killed[0] + killed[1], halts, releases, forks
}
