package task

import (
	"time"

	"github.com/streamdp/streamdp/stream/monitor"
)

const (
	settleTime = time.Millisecond      // between a tick and what is published at it
	capTick    = 10 * time.Millisecond // the longest period of the ticks at which commits become visible
	mostMissed = 3                     // the most ticks missed in a row
)

// onTick commits if a commit is due, and shows the progress. No record is applied between the tick and the end of
// onTick.
func (p *processor) onTick() error {
	a, w := p.applier, p.committer
	if w.period > 0 && (w.due() || p.view() != p.shown) {
		time.Sleep(p.tick.Add(settleTime).Sub(p.r.D.Now()))
	}
	p.missed = 0
	if w.due() && w.writing == nil {
		if err := p.write(p.tick); err != nil {
			return err
		}
	}
	w.flush()
	p.schedule(p.r.D.Now())
	p.show()
	// A merger of several logs changes the progress without waking the owner. The ends of a log also change while no
	// record is applied.
	wakes := a.merge == nil || a.merge.Ahead
	p.asleep = w.period > 0 && wakes && !a.waiting() && w.writing == nil && !w.due() && !w.choked()
	return nil
}

// schedule sets the next tick, a multiple of the period. If a commit has failed because the disk is full, the tick
// comes after a pause.
func (p *processor) schedule(now time.Time) {
	if p.committer.failed {
		now = now.Add(p.committer.pause.Next())
	}
	p.tick = multiple(p.r.D.Started, now, p.committer.period)
}

// resting reports whether applying has stopped for the coming tick.
func (p *processor) resting() bool {
	return p.committer.period > 0 && !p.asleep && !p.r.D.Now().Before(p.tick.Add(-p.lead()))
}

// miss handles a tick that passed while records were applied or a step was closed. The commit that was due is written
// at the next tick. If the missed tick passed more than a quarter of a period ago, nothing is applied before the next
// one. Otherwise applying stops a little earlier before the next one.
func (p *processor) miss(now time.Time) {
	if p.missed++; now.After(p.tick.Add(p.committer.period / 4)) {
		p.missed = mostMissed
	}
	p.tick = multiple(p.r.D.Started, now, p.committer.period)
}

// lead returns how long before the tick applying stops.
func (p *processor) lead() time.Duration {
	switch p.missed {
	case 0:
		return 0
	case 1:
		return p.committer.period / 16
	case 2:
		return p.committer.period / 4
	}
	return p.committer.period
}

// nextTick waits for the next tick of committer.soon and returns it. It is used outside the loop, at the end of a run
// or of an epoch.
func (p *processor) nextTick() time.Time {
	tick := p.committer.soon(p.r.D.Now())
	if p.committer.period > 0 {
		time.Sleep(tick.Add(settleTime).Sub(p.r.D.Now()))
	}
	return tick
}

// view returns the owner's progress.
func (p *processor) view() monitor.Progress {
	a, w := p.applier, p.committer
	log, seen := a.log()
	at := a.boundary()
	return monitor.Progress{
		Step: at.step, Seen: seen, Unsent: w.unpublished(), Comparing: w.comparing, Log: log, Verdict: at.verdict,
	}
}

// show sends the owner's progress, and the counts of its work, to status and metrics.
func (p *processor) show() {
	p.shown = p.view()
	work := p.applier.takeWork()
	p.r.D.Metrics.Worked(p.r.Task, &work)
	p.r.progress(p.shown)
}

// multiple returns the first start + k·period after now; for period 0 it returns now.
func multiple(start, now time.Time, period time.Duration) time.Time {
	if period == 0 {
		return now
	}
	return start.Add((now.Sub(start)/period + 1) * period)
}
