package stream_test

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
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/recovery"
	"github.com/streamdp/streamdp/stream/state"
)

// fourStreams are streams with one mechanism each on one topic. Their epochs roll over every few steps.
var fourStreams = func() string {
	stream := func(name, more, table string) string {
		s := fixtures.With(fixtures.OrdersStream, "step   = 100\n", more+"on_horizon = \"rollover\"\n",
			"[stream.orders.moments]\nclip = 1.0\n", table,
			`"orders.dp"`, `"`+name+`.dp"`, "limit_epsilon = 3.0", "limit_epsilon = 20.0")
		return strings.ReplaceAll(s, "stream.orders", "stream."+name)
	}
	return stream("orders", "step = 20\nhorizon = 3\n", "[stream.orders.moments]\nclip = 1.0\n") +
		stream("slopes", "horizon = 4\n",
			"[stream.orders.sgd]\nmethod = \"amb\"\ntarget = \"weight\"\nclip_x = 2.0\nradius = 5.0\n"+
				"amb = { curvature = 1.0, batch = 20, bootstrap = 20 }\n") +
		stream("windows", "horizon = 2\n",
			"[stream.orders.refit]\ntarget = \"weight\"\nclip_x = 2.0\nclip_y = 1.0\nwindow = 40\n") +
		stream("model", "step = 20\nhorizon = 3\n",
			"[stream.orders.adam]\nmode = \"model\"\nclip = 1.0\nrate = 0.05\n"+
				"model = { loss = \"linear\", target = \"weight\" }\n")
}()

var fourTasks = []string{"orders", "slopes", "windows", "model"}

// kills returns how many daemons a test kills: a few, or STREAMDP_KILLS.
func kills(t testing.TB) int {
	t.Helper()
	text := os.Getenv("STREAMDP_KILLS")
	if text == "" {
		return 12
	}
	n, err := strconv.Atoi(text)
	fixtures.Must(t, err)
	return n
}

// kept returns the rig's configuration with retention of secrets, so that all published releases can be recomputed.
func kept(r *streamtest.Rig) string {
	return strings.Replace(string(r.Text()), "[http]\n", "epoch_secret_retention = \"100h\"\n[http]\n", 1)
}

// killSome starts and kills daemons, and returns how many it killed. If mayHalt is true, it ends early if a daemon has
// ended by itself because all of its tasks halted.
func killSome(t testing.TB, spec streamtest.ChildSpec, rng *rand.Rand, kills int, mayHalt bool,
	feed func()) (killed int) {
	t.Helper()
	for i := range kills {
		feed()
		p := streamtest.Spawn(t, spec)
		up := make(chan error, 1)
		go func() {
			_, err := p.Lines.ReadString('\n')
			up <- err
		}()
		err := error(nil)
		select {
		case err = <-up:
		case <-time.After(time.Second): // its first task has halted, but others run
		}
		if err == nil {
			// The kill comes at a random moment.
			time.Sleep(3*time.Millisecond + time.Duration(rng.IntN(120_000))*time.Microsecond)
		}
		p.Cmd.Process.Kill()
		<-p.Done
		switch {
		case p.Cmd.ProcessState.ExitCode() < 0:
		case mayHalt && strings.Contains(p.Stderr.String(), failure.ErrHalted.Error()):
			return i
		default:
			t.Errorf("after %d kills the daemon ended by itself: %v\n%s", i, p.Err, p.Stderr)
			return i
		}
	}
	return kills
}

// epochsFollow fails unless the epochs of a history cover the log from its beginning on, without a gap and without a
// record in two epochs.
func epochsFollow(v *streamtest.Verdict, t testing.TB, what string) (epochs int, end int64) {
	t.Helper()
	type span struct {
		epoch      uint64
		first, end int64
	}
	spans := map[uint64]span{}
	for _, p := range v.ByKey {
		rel := p.Parse(t)
		s := spans[p.Epoch]
		spans[p.Epoch] = span{p.Epoch, rel.Covers[0], max(s.end, rel.Offsets[1])}
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

// TestKillsOfAll kills a daemon with a task of every mechanism at random moments: in steps, commits, publications,
// closings and openings. No key has two releases, none is missing, the epochs of a task follow each other without a
// gap, no record is charged for two epochs of a task, and an auditor who recomputes every release finds the same bytes.
func TestKillsOfAll(t *testing.T) {
	t.Parallel()
	// A start reads the whole ledger, so the ledger must not grow without limit.
	const round = 500
	n := kills(t)
	for i := uint64(0); n > 0 && !t.Failed(); i++ {
		killAll(t, i, min(n, round))
		n -= round
	}
}

func killAll(t *testing.T, round uint64, n int) {
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	fixtures.Must(t, err)
	defer b.Close()
	r := streamtest.NewRigAt(t, b, b.Addr(), fourStreams)
	r.Commit = "0s"
	text := kept(r)
	spec := streamtest.ChildSpec{Role: "daemon", Config: text, Seed: r.Seed, Fetch: 16 << 10}
	fed := 0
	begun := time.Now()
	killSome(t, spec, rand.New(rand.NewPCG(31, round)), n, false, func() {
		// Feed only as much as the slowest task can read, because the rest must be read at the end.
		if fed-slowest(r) < 300 {
			r.Produce(fed, 120)
			fed += 120
		}
	})
	took := time.Since(begun)
	end, err := fixtures.Dial(t, r.Addr).End(t.Context(), "orders", 0)
	fixtures.Must(t, err)
	cfg, err := config.Parse("kept.toml", []byte(text))
	fixtures.Must(t, err)
	keep := func(o *stream.Options) { o.Config.State.EpochSecretRetention = cfg.State.EpochSecretRetention }
	x := r.Start(keep)
	x.Until("all is published", func(monitor.TaskStatus) bool {
		for _, s := range x.D.Status() {
			if s.State != monitor.StateRunning || s.NextOffset < end || s.Outbox > 0 || s.Comparing {
				return false
			}
		}
		// The records of a window are read before its refit.
		covered := int64(0)
		for _, p := range outputIfAny(r, "windows.dp") {
			covered = max(covered, p.Parse(t).Offsets[1])
		}
		return end-covered < 40
	})
	x.End()

	var said []string
	for _, name := range fourTasks {
		v := r.History(name + ".dp")
		epochs, last := epochsFollow(v, t, name)
		if end-last >= 40 {
			t.Errorf("%s: releases cover the log up to %d, which ends at %d", name, last, end)
		}
		a := recovery.Audit{Config: cfg, Key: connect.InsecureKey(r.Seed),
			Log: slog.New(slog.NewTextHandler(r.Log, nil))}
		ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience+time.Duration(n)*time.Second)
		all, err := recovery.Verify(ctx, a, core.Task{Stream: name})
		cancel()
		fixtures.Must(t, err)
		verified := 0
		for _, e := range all {
			verified += e.Releases
			if e.Difference+e.Unverifiable != "" || e.Missing != 0 {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if verified != len(v.Bytes) || verified == 0 {
			t.Errorf("%s: %d of %d releases were recomputed", name, verified, len(v.Bytes))
		}
		said = append(said,
			fmt.Sprintf("%s: %d releases in %d epochs, %d sent again", name, len(v.Bytes), epochs, v.Duplicates))
	}
	voids := chargedOnce(r, t)
	t.Logf("%d kills in %v, %d offsets, %d openings that were void; %s", n, took.Round(time.Second), end, voids,
		strings.Join(said, "; "))
}

// slowest returns the smallest offset that a task has committed, or 0 if one has no checkpoint.
func slowest(r *streamtest.Rig) int {
	least := math.MaxInt
	for _, name := range fourTasks {
		data, err := os.ReadFile(filepath.Join(r.Dir, "state", "tasks", name+"-0", state.CheckpointName))
		if err != nil {
			return 0
		}
		cp, err := state.ParseCheckpoint(data)
		fixtures.Must(r.T, err)
		least = min(least, int(cp.Position.Next))
	}
	return least
}

// chargedOnce fails if a record is charged for more than one epoch of a task. It returns the number of openings that
// were taken back.
func chargedOnce(r *streamtest.Rig, t testing.TB) (voids int) {
	t.Helper()
	data, err := os.ReadFile(r.LedgerFile())
	fixtures.Must(t, err)
	l, err := ledger.Parse(data, ledger.NewKey(connect.InsecureKey(r.Seed)))
	fixtures.Must(t, err)
	costs := map[string]dp.Cost{}
	var source core.Source
	var a dp.Adjacency
	for _, e := range l.Entries {
		switch e.Kind {
		case ledger.KindVoid:
			voids++
		case ledger.KindOpen:
			costs[e.Stream], source, a = e.Cost, e.Source, e.Cost.Adjacency
		}
	}
	var list []dp.Cost
	for _, c := range costs {
		list = append(list, c)
	}
	want, err := dp.Compose(list...).Epsilon(1e-8)
	fixtures.Must(t, err)
	paid, err := l.Charged(streamtest.OfRecords(source), a, 1e-8, nil)
	fixtures.Must(t, err)
	got, err := paid.Epsilon(1e-8)
	fixtures.Must(t, err)
	if len(costs) != len(fourTasks) || !(got <= want*(1+1e-9) && got > 0) {
		t.Errorf("the worst-off record is charged ε = %g, but one epoch of %d tasks costs %g", got, len(costs), want)
	}
	return voids
}

// conflicts returns the keys that have two releases. It fails if such a key is not the first one of its epoch, because
// a copy must halt before its second release.
func conflicts(t testing.TB, list []fixtures.Published) (forks []string) {
	t.Helper()
	values := map[string][32]byte{}
	first := map[uint64]uint64{} // the step of each epoch's first release
	of := map[string]fixtures.Published{}
	for _, p := range list {
		if s, ok := first[p.Epoch]; !ok || p.Step < s {
			first[p.Epoch] = p.Step
		}
		if was, ok := values[p.Key]; ok && was != p.Hash && !slices.Contains(forks, p.Key) {
			forks = append(forks, p.Key)
		}
		values[p.Key], of[p.Key] = p.Hash, p
	}
	for _, key := range forks {
		if p := of[key]; p.Step != first[p.Epoch] {
			t.Errorf("release %s was published with two values, and is not the first of its epoch", key)
		}
	}
	return forks
}

// TestConflicts is the control of TestKillsOfCopies: the checker must detect a copy that does not halt.
func TestConflicts(t *testing.T) {
	t.Parallel()
	at := func(epoch, step uint64, value byte) fixtures.Published {
		return fixtures.Published{Key: fmt.Sprint("orders/0/", epoch, "/", step), Hash: [32]byte{value},
			Epoch: epoch, Step: step}
	}
	same := []fixtures.Published{at(1, 1, 1), at(1, 1, 1), at(1, 2, 2), at(2, 2, 3), at(1, 2, 2)}
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

// failures counts failures.
type failures struct {
	testing.TB
	n int
}

func (*failures) Helper()                 {}
func (f *failures) Errorf(string, ...any) { f.n++ }

// TestKillsOfCopies kills two daemons that run at the same time on copies of one state and draw their own secrets, with
// epochs that end every few steps. In the epochs that they have in common, both publish the same bytes. When each opens
// an epoch, at most one key has two releases, the first of that epoch, because a copy halts before its second.
func TestKillsOfCopies(t *testing.T) {
	t.Parallel()
	n, done, rounds, halts, releases := kills(t), 0, 0, 0, 0
	var all []string
	for done < n && !t.Failed() {
		rounds++
		k, h, l, forks := killCopies(t, uint64(rounds))
		done, halts, releases, all = done+k, halts+h, releases+l, append(all, forks...)
	}
	t.Logf(
		"%d kills in %d rounds: %d releases, %d tasks of a copy halted, %d keys with two releases, each the first "+
			"of its epoch", done, rounds, releases, halts, len(all))
	if halts == 0 {
		t.Error("no copy halted: they did not run at the same time")
	}
}

func killCopies(t *testing.T, round uint64) (kills, halts, releases int, forks []string) {
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	fixtures.Must(t, err)
	defer b.Close()
	r := streamtest.NewRigAt(t, b, b.Addr(), fourStreams)
	r.Commit = "0s"
	f := feedAt(r, 50*time.Millisecond, 10)
	spec := streamtest.ChildSpec{Role: "daemon", Config: string(r.Text()), Seed: r.Seed, Real: true, Fetch: 16 << 10}
	p := streamtest.Spawn(t, spec).Up()
	time.Sleep(200 * time.Millisecond) // kill the daemon at an arbitrary moment
	p.Kill()
	s := r.Sibling(fourStreams)
	r.CopyState(s)
	var wg sync.WaitGroup
	var killed [2]int
	for i, c := range []*streamtest.Rig{r, s} {
		wg.Go(func() {
			spec := spec
			spec.Config, spec.Fetch = string(c.Text()), []int{16 << 10, 5 << 10}[i]
			killed[i] = killSome(t, spec, rand.New(rand.NewPCG(32, 2*round+uint64(i))), 10, true, func() {})
		})
	}
	wg.Wait()
	f.end()
	end, err := fixtures.Dial(t, r.Addr).End(t.Context(), "orders", 0)
	fixtures.Must(t, err)
	halted := map[string]bool{}
	for _, c := range []*streamtest.Rig{r, s} {
		x := c.Start(func(o *stream.Options) { o.InsecureSeed = nil })
		settled := func() bool {
			for _, s := range x.D.Status() {
				if s.State != monitor.StateHalted &&
					(s.State != monitor.StateRunning || s.NextOffset < end || s.Outbox > 0 || s.Comparing) {
					return false
				}
			}
			return true
		}
		x.Until("every task has halted or caught up", func(monitor.TaskStatus) bool { return settled() })
		for _, s := range x.D.Status() {
			if s.State == monitor.StateHalted {
				halts++
				halted[s.Stream] = true
				// An opening that a crash interrupted is not taken back if the output holds releases of that epoch from
				// the other copy.
				if s.Reason != failure.OutputAhead &&
					!(s.Reason == failure.State && strings.Contains(s.Message, "the epoch may have run")) {
					t.Errorf("%s halted with %s: %s", s.Stream, s.Reason, s.Message)
				}
			}
		}
		x.Stop()
		<-x.Done
	}
	for _, name := range fourTasks {
		list := r.Output(name + ".dp")
		releases += len(list)
		found := conflicts(t, list)
		if len(found) > 0 && !halted[name] {
			t.Errorf("%s: %v have two releases, and no copy halted", name, found)
		}
		forks = append(forks, found...)
	}
	return 1 + killed[0] + killed[1], halts, releases, forks
}
