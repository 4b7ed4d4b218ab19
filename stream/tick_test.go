package stream

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
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
)

// busy is an estimator whose steps take a while to close, by a simulated clock.
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

// busyRun applies batches of ten records by a simulated clock.
type busyRun struct {
	m       *machine
	p       *processor
	steps   int
	commits []time.Time
	left    []time.Time // releases went to the publisher
	shown   []time.Time // the status had another number of unpublished releases
	begun   time.Time
}

// runBusy applies batches until all of their steps are committed. If answer is not 0, a broker
// acknowledges releases so long after they leave.
func runBusy(t *testing.T, step int64, period time.Duration, took func(step int) time.Duration, batches int64, answer time.Duration) *busyRun {
	m := newMachine(t, with(machineStream, "step   = 7", fmt.Sprint("step = ", step)), 1)
	r := &busyRun{m: m}
	mech, err := core.NewMechanism(m.r.s, m.m.Plan, nil)
	must(t, err)
	mech.Estimator = busy{mech.Estimator, &r.steps, took}
	c, err := core.New(m.r.s, m.m, m.file, mech, m.keys())
	must(t, err)
	cp, err := m.r.store.load()
	must(t, err)
	must(t, c.Resume(cp.state, cp.step, cp.transcript, cp.nexts()))
	// The process has run for some time that is no multiple.
	time.Sleep(7777 * time.Microsecond)

	m.r.store.disk.(*simDisk).refuse = func(op, name string) error {
		if op == "rename" && strings.HasSuffix(name, temporaryName) {
			r.commits = append(r.commits, time.Now())
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	}
	r.p = &processor{
		r: m.r, epoch: &openEpoch{m: m.m, core: c, cp: cp}, core: c, position: cp.position, period: period,
		fetch: &fetcher{free: make(chan *codec.Batch, batches), full: make(chan *codec.Batch, batches), failed: make(chan error)}, pub: newPublisher(m.r.guard, m.r.feed, cp),
	}
	log := mutateLog(1)
	for i := range batches {
		b := &codec.Batch{}
		b.First, b.Next = 10*i, 10*i+10
		b.Records = log[b.First:b.Next]
		m.decoder.Decode(b)
		r.p.fetch.full <- b
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
			case <-r.p.pub.wake:
				r.left = append(r.left, time.Now())
			}
			if answer > 0 {
				time.Sleep(answer)
				r.p.pub.mu.Lock()
				acked := r.p.pub.queue[len(r.p.pub.queue)-1].Step
				r.p.pub.mu.Unlock()
				r.p.pub.acked.Store(acked)
				signal(r.p.pub.notify)
			}
		}
	})
	unsent := 0
	var observing sync.Mutex // the loop, and what writes a commit
	m.r.d.observe = func() {
		observing.Lock()
		defer observing.Unlock()
		if n := m.r.status.Load().Outbox; n != unsent {
			unsent = n
			r.shown = append(r.shown, time.Now())
		}
	}
	go func() {
		r.p.begin()
		done <- r.p.loop(ctx)
	}()
	synctest.Wait()
	// The status, for the loop writes its outbox meanwhile.
	for s := m.r.status.Load(); int64(s.Step) < 10*batches/step || answer > 0 && s.Outbox > 0; s = m.r.status.Load() {
		time.Sleep(period)
		synctest.Wait()
	}
	time.Sleep(10 * period) // the status counts what is not committed yet
	stop()
	must(t, <-done)
	leaving.Wait()
	if answer == 0 && len(r.p.outbox) != r.steps || len(r.commits) == 0 {
		t.Fatalf("%d of %d releases are committed, in %d commits", len(r.p.outbox), r.steps, len(r.commits))
	}
	return r
}

// TestCommitsAtTicks: whatever the closing of steps takes, releases leave a
// settleTime after a multiple of the period, and messages, status and metrics have
// that multiple for their time.
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
		"within a tick": func(step int) time.Duration { return 13*time.Millisecond + time.Duration(step)*100*time.Microsecond },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := runBusy(t, 7, period, took, 30, 0)
				m, p, commits := run.m, run.p, run.commits
				ticks := map[int64]bool{}
				for _, at := range commits {
					tick := at.Add(-settleTime)
					if off := tick.Sub(m.r.d.started) % period; off != 0 {
						t.Errorf("a commit after %v is %v off the clock", at.Sub(run.begun), off)
					}
					ticks[tick.UnixMilli()] = true
				}
				for _, rel := range p.outbox {
					if !ticks[rel.time.UnixMilli()] {
						t.Errorf("a message has the time %v, which is no tick of a commit", rel.time)
					}
				}
				if len(run.left) == 0 {
					t.Error("no release left")
				}
				for _, at := range run.left {
					if off := at.Add(-settleTime).Sub(m.r.d.started) % capTick; off != 0 {
						t.Errorf("releases left %v off the clock", off)
					}
				}
				last := commits[len(commits)-1].Add(-settleTime)
				if at := m.r.status.Load().LastCommit; at == nil || !at.Equal(last) {
					t.Errorf("the status says that the last commit was at %v, it was that of %v", at, last)
				}
				if got := gauge(t, m.r.d.metrics, "last_commit_timestamp_seconds"); got != float64(last.UnixMilli())/1000 {
					t.Errorf("the metric says that the last commit was at %f, it was that of %v", got, last)
				}
			})
		})
	}
}

// TestUnpublishedAtTicks: how many releases are not published yet, status and metrics say at ticks alone,
// whenever a broker acknowledges them while steps are closed that take long.
func TestUnpublishedAtTicks(t *testing.T) {
	const period = 20 * time.Millisecond
	for name, took := range map[string]time.Duration{"short": 1300 * time.Microsecond, "long": 97 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := runBusy(t, 7, period, func(int) time.Duration { return took }, 30, 3300*time.Microsecond)
				if len(run.shown) < 2 || len(run.p.outbox) > 0 {
					t.Errorf("the number changed %d times, %d releases are left", len(run.shown), len(run.p.outbox))
				}
				for _, at := range run.shown {
					if off := at.Add(-settleTime).Sub(run.m.r.d.started) % period; off != 0 {
						t.Errorf("the number changed %v off the clock", off)
					}
				}
			})
		})
	}
}

// TestMissedTicks: work that outlasts ticks by a moment costs a sixteenth of the period for each,
// and work that lasts for many is committed at the next tick.
func TestMissedTicks(t *testing.T) {
	const period, batches = 200 * time.Millisecond, 300
	for name, test := range map[string]struct {
		took time.Duration // of a step
		most float64       // times that, from the first step to the last commit
		late time.Duration // at most, of a release
	}{
		"short": {3 * time.Millisecond, 1.1, 2 * period},
		"long":  {330 * time.Millisecond, 1.3, period + settleTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := runBusy(t, 7, period, func(int) time.Duration { return test.took }, batches, 0)
				all := time.Duration(run.steps) * test.took
				if took := run.commits[len(run.commits)-1].Sub(run.begun); float64(took) > test.most*float64(all+period) {
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

// TestFullBesideCommit: where a thousand releases wait while a commit is written, the next one
// begins soon after it, and not a whole period later.
func TestFullBesideCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const period = 200 * time.Millisecond
		run := runBusy(t, 1, period, func(int) time.Duration { return 4 * time.Microsecond }, mutateSteps/10, 0)
		if took := run.left[len(run.left)-1].Sub(run.begun); took > period+100*time.Millisecond {
			t.Errorf("%d releases left after %v, in %d commits", run.steps, took, len(run.commits))
		}
	})
}

// TestLeavesInOrder: releases of a commit that ends behind a comparison wait for those that the
// comparison kept back.
func TestLeavesInOrder(t *testing.T) {
	m := newMachine(t, machineStream, 1)
	compare := func(found map[string]found) {
		m.r.guard.mu.Lock()
		m.r.guard.found = found
		m.r.guard.mu.Unlock()
	}
	log := mutateLog(1)
	compare(map[string]found{"of another step": {step: 100}})
	for i := range int64(3) {
		m.p.compare()
		m.feed(log, 7*(i+1))
		c, err := m.p.prepare(time.Now())
		must(t, err)
		m.p.store(c)
		if i > 0 {
			compare(nil)
		}
		m.p.leave(c)
		if done, err := m.p.finish(c); err != nil || !done {
			t.Fatal(done, err)
		}
		if i < 2 && len(m.p.pub.queue) > 0 {
			t.Errorf("the releases of commit %d left before others", i)
		}
		m.p.compare()
		if i > 0 {
			m.p.flush()
		}
	}
	for i, rel := range m.p.pub.queue {
		if rel.Step != uint64(i+1) {
			t.Errorf("release %d is of step %d", i, rel.Step)
		}
	}
	if n := len(m.p.pub.queue); n != 3 || m.p.sent != 3 {
		t.Errorf("%d releases left, %d sent", n, m.p.sent)
	}
}

// TestGraver: a failed sync is not hidden by what ended the loop.
func TestGraver(t *testing.T) {
	disk, input, halts := errors.New("sync"), &kafka.Error{}, halted(haltOutput, "differs")
	for _, c := range []struct{ a, b, want error }{
		{nil, nil, nil}, {halts, nil, halts}, {halts, disk, disk}, {input, disk, disk}, {nil, halts, halts}, {input, halts, input},
	} {
		if got := graver(c.a, c.b); got != c.want {
			t.Errorf("of %v and %v: %v", c.a, c.b, got)
		}
	}
}

// TestClosesBesideTicks: while a refit solves a window for many ticks, commits go on at each,
// and the release leaves at the first one behind it.
func TestClosesBesideTicks(t *testing.T) {
	const period, took = 20 * time.Millisecond, 333 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		toml := refitOf("window = 20")
		m := newMachine(t, toml, 1)
		log := mutateLog(1)
		want := newMachine(t, toml, 1).all(log[:100], 100)
		mech, err := core.NewMechanism(m.r.s, m.m.Plan, nil)
		must(t, err)
		steps := 0
		mech.Estimator = busyRefit{mech.Estimator.(refitting), &steps, took}
		c, err := core.New(m.r.s, m.m, m.file, mech, m.keys())
		must(t, err)
		cp, err := m.r.store.load()
		must(t, err)
		must(t, c.Resume(cp.state, cp.step, cp.transcript, cp.nexts()))
		time.Sleep(7777 * time.Microsecond)

		p := &processor{
			r: m.r, epoch: &openEpoch{m: m.m, core: c, cp: cp}, core: c, position: cp.position, period: period,
			pub: newPublisher(m.r.guard, m.r.feed, cp),
		}
		x, err := newLeafReader(c, 0, c.Leaves()[0], cp.position, 0)
		must(t, err)
		x.fetch = &fetcher{free: make(chan *codec.Batch, 40), full: make(chan *codec.Batch, 40), failed: make(chan error)}
		x.moved = make(chan struct{}, 1)
		p.merge = &merger{ahead: true, leaves: []*leafReader{x}, at: cp.all(), moved: x.moved, whole: make(chan []leafStep), failed: make(chan error, 1)}
		for i := range int64(10) {
			b := &codec.Batch{}
			b.First, b.Next = 10*i, 10*i+10
			b.Records = log[b.First:b.Next]
			m.decoder.Decode(b)
			x.fetch.full <- b
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go x.run(ctx)
		go p.merge.collect(ctx)
		begun := time.Now()
		go func() {
			p.begin()
			done <- p.loop(ctx)
		}()
		for i := 0; m.r.status.Load().Outbox < 5; i++ {
			time.Sleep(period)
			synctest.Wait()
			if i%5 > 0 {
				// The loop compares, and logs the step, while the core belongs to the close.
				m.r.guard.mu.Lock()
				m.r.guard.found = map[string]found{}
				if i%5 == 2 {
					m.r.guard.found["of another step"] = found{step: 100}
				}
				m.r.guard.mu.Unlock()
				signal(p.pub.notify)
				continue
			}
			// A process that begins at what is durable now makes the same releases.
			again := newMachine(t, toml, 1)
			again.r.store, err = openStore(m.r.store.disk.(*simDisk).reboot(crashLost, nil), m.r.store.dir, nil)
			must(t, err)
			again.restart()
			durable := len(again.releases)
			again.all(log[again.next():100], 100)
			again.equals(fmt.Sprintf("after %d durable releases", durable), want)
		}
		stop()
		must(t, <-done)
		if steps != 5 || len(p.outbox) != 5 {
			t.Fatalf("%d releases of %d steps", len(p.outbox), steps)
		}
		for i, rel := range p.outbox {
			w := want.releases[rel.Step]
			if !bytes.Equal(rel.Value, w.Value) {
				t.Errorf("step %d has another release", rel.Step)
			}
			ended := begun.Add(time.Duration(i+1) * took)
			if late := rel.time.Sub(ended); late < -time.Millisecond || late > period {
				t.Errorf("the release of step %d left %v after it was there", rel.Step, late)
			}
		}
	})
}

// refitting is what core asks of the estimator of a refit.
type refitting interface {
	core.Estimator
	NewPart() (dp.Part, error)
	Merge(dp.Part) error
}

// busyRefit is a refit whose windows take a while to solve, by a simulated clock.
type busyRefit struct {
	refitting
	steps *int
	took  time.Duration
}

func (b busyRefit) Close(n dp.Noise) (*dp.Release, error) {
	*b.steps++
	r, err := b.refitting.Close(n)
	time.Sleep(b.took) // with a state that the core does not have yet
	return r, err
}

// gauge returns the only value of a metric.
func gauge(t *testing.T, m *metrics, name string) float64 {
	t.Helper()
	families, err := m.registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == "streamdp_"+name && len(f.Metric) == 1 {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
