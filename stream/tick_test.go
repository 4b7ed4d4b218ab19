package stream

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"streamdp/dp"
	"streamdp/stream/codec"
	"streamdp/stream/core"
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
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(t, machineStream, 1)
				mech, err := core.NewMechanism(m.r.s, m.m.Plan, nil)
				must(t, err)
				steps := 0
				mech.Estimator = busy{mech.Estimator, &steps, took}
				c, err := core.New(m.r.s, m.m, m.file, mech, m.keys())
				must(t, err)
				cp, err := m.r.store.load()
				must(t, err)
				must(t, c.Resume(cp.state, cp.step, cp.transcript, cp.nexts()))
				// The process has run for some time that is no multiple.
				time.Sleep(7777 * time.Microsecond)

				var commits []time.Time
				m.r.store.disk.(*simDisk).refuse = func(op, name string) error {
					if op == "rename" && strings.HasSuffix(name, temporaryName) {
						commits = append(commits, time.Now())
					}
					return nil
				}
				p := &processor{
					r: m.r, epoch: &openEpoch{m: m.m, core: c, cp: cp}, core: c, position: cp.position, period: period,
					fetch: &fetcher{free: make(chan *codec.Batch, 40), full: make(chan *codec.Batch, 40), failed: make(chan error)}, pub: newPublisher(m.r.guard, m.r.d.host, cp),
				}
				const batches = 30
				log := mutateLog(1)
				for i := range int64(batches) {
					b := &codec.Batch{}
					b.First, b.Next = 10*i, 10*i+10
					b.Records = log[b.First:b.Next]
					m.decoder.Decode(b)
					p.fetch.full <- b
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error)
				begun := time.Now()
				go func() {
					p.begin()
					done <- p.loop(ctx)
				}()
				synctest.Wait()
				// The status, for the loop writes its outbox meanwhile.
				for m.r.status.Load().Outbox < 10*batches/7 {
					time.Sleep(period)
					synctest.Wait()
				}
				stop()
				must(t, <-done)

				if len(p.outbox) != steps || len(commits) == 0 {
					t.Fatalf("%d of %d releases are committed, in %d commits", len(p.outbox), steps, len(commits))
				}
				ticks := map[int64]bool{}
				for _, at := range commits {
					tick := at.Add(-settleTime)
					if off := tick.Sub(m.r.d.started) % period; off != 0 {
						t.Errorf("a commit after %v is %v off the clock", at.Sub(begun), off)
					}
					ticks[tick.UnixMilli()] = true
				}
				for _, rel := range p.outbox {
					if !ticks[rel.time.UnixMilli()] {
						t.Errorf("a message has the time %v, which is no tick of a commit", rel.time)
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

// gauge returns the only value of a metric.
func gauge(t *testing.T, m *metrics, name string) float64 {
	t.Helper()
	families, err := m.registry.Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() == prefix+name && len(f.Metric) == 1 {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
