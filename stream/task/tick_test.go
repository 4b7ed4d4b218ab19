package task

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/simdisk"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/input"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/output"
	"github.com/streamdp/streamdp/stream/state"
)

// busy is an estimator whose steps take a while to close, on a simulated clock.
type busy struct {
	core.Estimator
	steps *int
	took  func(step int) time.Duration
}

func (b busy) Close(n dp.Noise) (*dp.Release, error) {
	*b.steps++
	time.Sleep(b.took(*b.steps))
	return b.Estimator.Close(n)
}

// busyRun applies batches of ten records on a simulated clock.
type busyRun struct {
	m       *machine
	p       *processor
	steps   int
	commits []time.Time
	left    []time.Time // times at which releases went to the publisher
	shown   []time.Time // times at which the status showed a new number of unpublished releases
	begun   time.Time
}

// runBusy applies batches until all of their steps are committed. If answer is not 0, a broker acknowledges releases
// that long after they are published.
func runBusy(t *testing.T, step int64, period time.Duration, took func(step int) time.Duration, batches int64,
	answer time.Duration) *busyRun {
	m := newMachine(t, fixtures.With(fixtures.MachineStream, "step   = 7", fmt.Sprint("step = ", step)), 1)
	r := &busyRun{m: m}
	mech, err := core.NewMechanism(m.r.S, m.m.Plan, nil)
	fixtures.Must(t, err)
	mech.Estimator = busy{mech.Estimator, &r.steps, took}
	c, err := core.New(m.r.S, m.m, m.file, mech, m.keys())
	fixtures.Must(t, err)
	cp, err := m.r.Store.Load()
	fixtures.Must(t, err)
	fixtures.Must(t, c.Resume(cp.State, cp.Step, cp.Transcript, cp.Nexts()))
	// The process has run for a time that is no multiple of the period.
	time.Sleep(7777 * time.Microsecond)

	m.r.Store.Disk.(*simdisk.SimDisk).Refuse = func(op, name string) error {
		if op == "rename" && strings.HasSuffix(name, state.TemporaryName) {
			r.commits = append(r.commits, time.Now())
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	}
	r.p = newProcessor(m.r, &epoch.OpenEpoch{M: m.m, Core: c, Cp: cp}, period)
	r.p.applier.fetch = &input.Fetcher{Free: make(chan *codec.Batch, batches), Full: make(chan *codec.Batch, batches),
		Failed: make(chan error)}
	log := mutateLog(1)
	for i := range batches {
		b := &codec.Batch{}
		b.First, b.Next = 10*i, 10*i+10
		b.Records = log[b.First:b.Next]
		m.decoder.Decode(b)
		r.p.applier.fetch.Full <- b
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	r.begun = time.Now()
	var leaving sync.WaitGroup
	leaving.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-r.p.committer.pub.Wake:
				r.left = append(r.left, time.Now())
			}
			if answer > 0 {
				time.Sleep(answer)
				r.p.committer.pub.Mu.Lock()
				acked := r.p.committer.pub.Queue[len(r.p.committer.pub.Queue)-1].Step
				r.p.committer.pub.Mu.Unlock()
				r.p.committer.pub.Acked.Store(acked)
				failure.Signal(r.p.committer.pub.Notify)
			}
		}
	})
	unsent := 0
	var observing sync.Mutex // the loop and the goroutine that writes a commit both observe
	m.r.D.Observe = func() {
		observing.Lock()
		defer observing.Unlock()
		if n := m.r.shown.Load().Outbox; n != unsent {
			unsent = n
			r.shown = append(r.shown, time.Now())
		}
	}
	go func() {
		r.p.begin()
		done <- r.p.loop(ctx)
	}()
	synctest.Wait()
	// Use the status, because the loop changes its outbox meanwhile.
	for s := m.r.shown.Load(); int64(s.Step) < 10*batches/step || answer > 0 && s.Outbox > 0; s = m.r.shown.Load() {
		time.Sleep(period)
		synctest.Wait()
	}
	time.Sleep(10 * period) // the status also counts uncommitted steps
	stop()
	fixtures.Must(t, <-done)
	leaving.Wait()
	if answer == 0 && len(r.p.committer.outbox) != r.steps || len(r.commits) == 0 {
		t.Fatalf("%d of %d releases are committed, in %d commits", len(r.p.committer.outbox), r.steps, len(r.commits))
	}
	return r
}

// TestCommitsAtTicks: no matter how long steps take to close, releases are published settleTime after a multiple of the
// period. Messages, status and metrics have that multiple as their time.
func TestCommitsAtTicks(t *testing.T) {
	const period = 20 * time.Millisecond
	for name, took := range map[string]func(step int) time.Duration{
		"nothing":          func(int) time.Duration { return 0 },
		"less than a tick": func(step int) time.Duration { return time.Duration(step) * 1300 * time.Microsecond },
		"up to the settle": func(int) time.Duration { return period + settleTime/2 },
		"more than a tick": func(step int) time.Duration { return period + time.Duration(step)*2100*time.Microsecond },
		"many ticks":       func(step int) time.Duration { return time.Duration(step) * 97 * time.Millisecond },
		"now and then":     func(step int) time.Duration { return time.Duration(step%3) * 33 * time.Millisecond },
		"just past a tick": func(int) time.Duration { return period + settleTime + time.Microsecond },
		"all but a moment": func(int) time.Duration { return period - time.Nanosecond },
		"a few ms": func(step int) time.Duration {
			return time.Duration(step%5)*1300*time.Microsecond + 700*time.Microsecond
		},
		"within a tick": func(step int) time.Duration {
			return 13*time.Millisecond + time.Duration(step)*100*time.Microsecond
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := runBusy(t, 7, period, took, 30, 0)
				m, p, commits := run.m, run.p, run.commits
				ticks := map[int64]bool{}
				for _, at := range commits {
					tick := at.Add(-settleTime)
					if off := tick.Sub(m.r.D.Started) % period; off != 0 {
						t.Errorf("a commit after %v is %v off the clock", at.Sub(run.begun), off)
					}
					ticks[tick.UnixMilli()] = true
				}
				for _, rel := range p.committer.outbox {
					if !ticks[rel.Time.UnixMilli()] {
						t.Errorf("a message has the time %v, which is no tick of a commit", rel.Time)
					}
				}
				if len(run.left) == 0 {
					t.Error("no release left")
				}
				for _, at := range run.left {
					if off := at.Add(-settleTime).Sub(m.r.D.Started) % capTick; off != 0 {
						t.Errorf("releases left %v off the clock", off)
					}
				}
				last := commits[len(commits)-1].Add(-settleTime)
				if at := m.r.shown.Load().LastCommit; at == nil || !at.Equal(last) {
					t.Errorf("the status says that the last commit was at %v, it was that of %v", at, last)
				}
				if got := gauge(t, m.r.D.Metrics,
					"last_commit_timestamp_seconds"); got != float64(last.UnixMilli())/1000 {
					t.Errorf("the metric says that the last commit was at %f, it was that of %v", got, last)
				}
			})
		})
	}
}

// TestUnpublishedAtTicks: status and metrics change the number of unpublished releases only at ticks, no matter when a
// broker acknowledges them while steps take long to close.
func TestUnpublishedAtTicks(t *testing.T) {
	const period = 20 * time.Millisecond
	for name, took := range map[string]time.Duration{"short": 1300 * time.Microsecond, "long": 97 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := runBusy(t, 7, period, func(int) time.Duration { return took }, 30, 3300*time.Microsecond)
				if len(run.shown) < 2 || len(run.p.committer.outbox) > 0 {
					t.Errorf("the number changed %d times, %d releases are left", len(run.shown),
						len(run.p.committer.outbox))
				}
				for _, at := range run.shown {
					if off := at.Add(-settleTime).Sub(run.m.r.D.Started) % period; off != 0 {
						t.Errorf("the number changed %v off the clock", off)
					}
				}
			})
		})
	}
}

// TestMissedTicks: if work lasts a moment longer than a tick, that costs a sixteenth of the period per tick. If work
// lasts for many ticks, it is committed at the first tick after it.
func TestMissedTicks(t *testing.T) {
	const period, batches = 200 * time.Millisecond, 300
	for name, test := range map[string]struct {
		took time.Duration // per step
		most float64       // longest time from the first step to the last commit, in units of took × steps
		late time.Duration // longest delay of a release
	}{
		"short": {3 * time.Millisecond, 1.1, 2 * period},
		"long":  {330 * time.Millisecond, 1.3, period + settleTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := runBusy(t, 7, period, func(int) time.Duration { return test.took }, batches, 0)
				all := time.Duration(run.steps) * test.took
				if took := run.commits[len(run.commits)-1].Sub(run.begun); float64(took) > test.most*
					float64(all+period) {
					t.Errorf("%d steps of %v were committed after %v", run.steps, test.took, took)
				}
				last := run.begun
				for _, at := range run.commits {
					if d := at.Sub(last); d > test.took+test.late {
						t.Errorf("no commit for %v", d)
					}
					last = at
				}
			})
		})
	}
}

// TestFullBesideCommit: if a thousand releases wait while a commit is written, the next commit begins soon after it,
// not a whole period later.
func TestFullBesideCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 200 * time.Millisecond
		run := runBusy(t, 1, period, func(int) time.Duration { return 4 * time.Microsecond }, mutateSteps/10, 0)
		if took := run.left[len(run.left)-1].Sub(run.begun); took > period+100*time.Millisecond {
			t.Errorf("%d releases left after %v, in %d commits", run.steps, took, len(run.commits))
		}
	})
}

// TestLeavesInOrder: a comparison with the output holds back releases. If a commit ends after the comparison, its
// releases are published after those.
func TestLeavesInOrder(t *testing.T) {
	m := newMachine(t, fixtures.MachineStream, 1)
	compare := func(found map[string]output.Found) {
		m.r.Guard.Mu.Lock()
		m.r.Guard.Found = found
		m.r.Guard.Mu.Unlock()
	}
	log := mutateLog(1)
	compare(map[string]output.Found{"of another step": {Step: 100}})
	for i := range int64(3) {
		m.p.updateComparing()
		m.feed(log, 7*(i+1))
		c, err := m.p.committer.prepare(time.Now())
		fixtures.Must(t, err)
		m.p.committer.store(c)
		if i > 0 {
			compare(nil)
		}
		m.p.committer.leave(c)
		if done, err := m.p.committer.finish(c); err != nil || !done {
			t.Fatal(done, err)
		}
		if i < 2 && len(m.p.committer.pub.Queue) > 0 {
			t.Errorf("the releases of commit %d left before others", i)
		}
		m.p.updateComparing()
		if i > 0 {
			m.p.committer.flush()
		}
	}
	for i, rel := range m.p.committer.pub.Queue {
		if rel.Step != uint64(i+1) {
			t.Errorf("release %d is of step %d", i, rel.Step)
		}
	}
	if n := len(m.p.committer.pub.Queue); n != 3 || m.p.committer.sent != 3 {
		t.Errorf("%d releases left, %d sent", n, m.p.committer.sent)
	}
}

// TestGraver: the error that ended the loop does not hide a failed sync.
func TestGraver(t *testing.T) {
	disk, input, halts := errors.New("sync"), &kafka.Error{}, failure.Haltf(failure.OutputAhead, "differs")
	for _, c := range []struct{ a, b, want error }{
		{nil, nil, nil}, {halts, nil, halts}, {halts, disk, disk}, {input, disk, disk}, {nil, halts, halts},
		{input, halts, input},
	} {
		if got := graver(c.a, c.b); got != c.want {
			t.Errorf("graver(%v, %v) = %v", c.a, c.b, got)
		}
	}
}

// TestClosesBesideTicks: while a refit solves a window for many ticks, each tick still commits, and the release is
// published at the first tick after the close.
func TestClosesBesideTicks(t *testing.T) {
	const period, took = 20 * time.Millisecond, 333 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		toml := fixtures.RefitOf("window = 20")
		m := newMachine(t, toml, 1)
		log := mutateLog(1)
		want := newMachine(t, toml, 1).all(log[:100], 100)
		mech, err := core.NewMechanism(m.r.S, m.m.Plan, nil)
		fixtures.Must(t, err)
		steps := 0
		mech.Estimator = busyRefit{mech.Estimator.(refitting), &steps, took}
		c, err := core.New(m.r.S, m.m, m.file, mech, m.keys())
		fixtures.Must(t, err)
		cp, err := m.r.Store.Load()
		fixtures.Must(t, err)
		fixtures.Must(t, c.Resume(cp.State, cp.Step, cp.Transcript, cp.Nexts()))
		time.Sleep(7777 * time.Microsecond)

		p := newProcessor(m.r, &epoch.OpenEpoch{M: m.m, Core: c, Cp: cp}, period)
		x, err := input.NewPartitionSummer(c, 0, c.Leaves()[0], cp.Position, 0)
		fixtures.Must(t, err)
		x.Fetch = &input.Fetcher{Free: make(chan *codec.Batch, 40), Full: make(chan *codec.Batch, 40),
			Failed: make(chan error)}
		x.Moved = make(chan struct{}, 1)
		p.applier.merge = &input.Merger{Ahead: true, Leaves: []*input.PartitionSummer{x}, At: cp.All(), Moved: x.Moved,
			MergedSums: make(chan []input.StepSum), Failed: make(chan error, 1)}
		for i := range int64(10) {
			b := &codec.Batch{}
			b.First, b.Next = 10*i, 10*i+10
			b.Records = log[b.First:b.Next]
			m.decoder.Decode(b)
			x.Fetch.Full <- b
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go x.Run(ctx)
		go p.applier.merge.Collect(ctx)
		begun := time.Now()
		go func() {
			p.begin()
			done <- p.loop(ctx)
		}()
		for i := 0; m.r.shown.Load().Outbox < 5; i++ {
			time.Sleep(period)
			synctest.Wait()
			if i%5 > 0 {
				// The loop compares, and logs the step, while the closing goroutine owns the core.
				m.r.Guard.Mu.Lock()
				m.r.Guard.Found = map[string]output.Found{}
				if i%5 == 2 {
					m.r.Guard.Found["of another step"] = output.Found{Step: 100}
				}
				m.r.Guard.Mu.Unlock()
				failure.Signal(p.committer.pub.Notify)
				continue
			}
			// A process that starts from the present durable state makes the same releases.
			again := newMachine(t, toml, 1)
			again.r.Store, err = state.Open(m.r.Store.Disk.(*simdisk.SimDisk).Reboot(simdisk.CrashLost, nil),
				m.r.Store.Dir, nil)
			fixtures.Must(t, err)
			again.restart()
			durable := len(again.releases)
			again.all(log[again.next():100], 100)
			again.equals(fmt.Sprintf("after %d durable releases", durable), want)
		}
		stop()
		fixtures.Must(t, <-done)
		if steps != 5 || len(p.committer.outbox) != 5 {
			t.Fatalf("%d releases of %d steps", len(p.committer.outbox), steps)
		}
		for i, rel := range p.committer.outbox {
			w := want.releases[rel.Step]
			if !bytes.Equal(rel.Value, w.Value) {
				t.Errorf("step %d has another release", rel.Step)
			}
			ended := begun.Add(time.Duration(i+1) * took)
			if late := rel.Time.Sub(ended); late < -time.Millisecond || late > period {
				t.Errorf("the release of step %d left %v after it was there", rel.Step, late)
			}
		}
	})
}

// refitting is the interface of a refit's estimator that package core uses.
type refitting interface {
	core.Estimator
	NewPart() (dp.Part, error)
	Merge(dp.Part) error
}

// busyRefit is a refit whose windows take a while to solve, on a simulated clock.
type busyRefit struct {
	refitting
	steps *int
	took  time.Duration
}

func (b busyRefit) Close(n dp.Noise) (*dp.Release, error) {
	*b.steps++
	r, err := b.refitting.Close(n)
	time.Sleep(b.took) // the state is changed, but the core does not have it yet
	return r, err
}

// gauge returns the only value of a metric.
func gauge(t *testing.T, m *monitor.Metrics, name string) float64 {
	t.Helper()
	families, err := m.Registry.Gather()
	fixtures.Must(t, err)
	for _, f := range families {
		if f.GetName() == "streamdp_"+name && len(f.Metric) == 1 {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
