package stream

import (
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

// wallClock is the system's clock after somebody has set it: its wall reading is off, and
// its monotonic reading goes on.
type wallClock struct{ seconds atomic.Int64 }

func (w *wallClock) now() time.Time {
	t := time.Now()
	// A time.Time that has a monotonic reading holds the wall's seconds in 33 bits above
	// 30 bits of nanoseconds.
	(*struct{ wall uint64 })(unsafe.Pointer(&t)).wall += uint64(w.seconds.Load()) << 30
	return t
}

// TestWallClock holds the layout that wallClock relies on.
func TestWallClock(t *testing.T) {
	t.Parallel()
	var w wallClock
	for _, s := range []int64{0, 7200, -10800} {
		w.seconds.Store(s)
		real, off := time.Now(), w.now()
		if d := off.Sub(real); d < 0 || d > time.Minute {
			t.Errorf("set by %d s, the monotonic reading moves by %v", s, d)
		}
		if d := off.Round(0).Sub(real.Round(0)) - time.Duration(s)*time.Second; d.Abs() > time.Minute {
			t.Errorf("set by %d s, the wall reading is %v off", s, d)
		}
	}
}

// TestClockJumps sets the wall clock forward and back while the daemon runs. Ticks and
// pauses go on as if nothing had happened, so do the times of messages, and releases are
// those of a run without jumps. The retention of secrets follows the wall clock.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.archive = true
	var clock wallClock
	kept := func(o *Options) {
		o.Hooks.Clock = clock.now
		o.Config.State.EpochSecretRetention = time.Hour
	}
	begun := time.Now()
	x := r.start(kept)
	steps := 0
	for _, jump := range []int64{0, 3 * 3600, -5 * 3600, math.MaxInt32 / 4, 2 * 3600} {
		clock.seconds.Store(jump)
		r.produce(100*steps, 200)
		steps += 2
		x.published(uint64(steps))
	}
	took := time.Since(begun)
	if took > patience {
		t.Errorf("ten steps took %v", took)
	}
	must(t, x.control(requestOpen, OpenRequest{}))
	x.end()
	r.archive = false
	r.history("orders.dp").equals(t, r.uninterrupted(uint64(steps)))

	files, err := filepath.Glob(r.file("archive-1.*"))
	must(t, err)
	n := 0
	var last time.Time
	for _, name := range files {
		data, err := os.ReadFile(name)
		must(t, err)
		list, err := parseArchive(data)
		must(t, err)
		for _, p := range list {
			if n++; p.time.Before(begun.Truncate(time.Millisecond)) || p.time.After(begun.Add(took+time.Minute)) || p.time.Before(last) {
				t.Errorf("step %d has the time %v, after one of %v; the run began at %v", p.Step, p.time, last, begun)
			}
			if !last.IsZero() && p.time.Sub(last)%(10*time.Millisecond) != 0 {
				t.Errorf("step %d has a time %v after the one before, which is no multiple of the commit interval", p.Step, p.time.Sub(last))
			}
			last = p.time
		}
	}
	if n != steps {
		t.Errorf("%d messages in the archive, want %d", n, steps)
	}

	// Epoch 1 was closed at 2 h by the wall clock.
	for _, c := range []struct {
		at    int64 // seconds
		there bool
	}{{-3 * 3600, true}, {2*3600 + 1800, true}, {3*3600 + 60, false}} {
		clock.seconds.Store(c.at)
		o := r.options()
		kept(&o)
		o.Hooks.Opened = func(in *Inside) { must(t, in.Tasks()[0].finishClosings(t.Context())) }
		d, err := New(o)
		must(t, err)
		d.Close()
		if _, err := os.Stat(r.file(secretName(1))); (err == nil) != c.there {
			t.Errorf("with the clock set by %d s, the secret is there: %t", c.at, err == nil)
		}
	}
}

// TestAnotherBuild: a program of another version and build that has the same versions of
// mechanism and formats goes on with an epoch as if it had begun it.
func TestAnotherBuild(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start(func(o *Options) { o.Version = "1.0" })
	x.published(5)
	x.end()
	data, err := os.ReadFile(r.file(checkpointName))
	must(t, err)
	cp, err := parseCheckpoint(data)
	must(t, err)
	cp.build = "go1.24.0 linux/arm64"
	must(t, os.WriteFile(r.file(checkpointName), cp.encode(nil), 0o600))
	r.produce(550, 500)
	x = r.start(func(o *Options) { o.Version = "2.0" })
	x.published(10)
	x.end()
	if got := r.kinds(); got != "open" {
		t.Errorf("ledger: %s", got)
	}
	v := r.history("orders.dp")
	ref := r.sibling(with(r.toml, `"orders.dp"`, `"reference.dp"`))
	x = ref.start(func(o *Options) { o.Version = "1.0" })
	x.published(10)
	x.end()
	v.equals(t, ref.history("reference.dp"))
}

// TestPartitionAdded: a partition more changes nothing for the tasks of the others.
func TestPartitionAdded(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 550)
	x := r.start()
	x.published(5)
	addPartitions(t, r, "orders", 2)
	if info, err := dial(t, r.addr).Topic(t.Context(), "orders"); err != nil || len(info.Partitions) != 2 {
		t.Fatalf("%+v %v", info, err)
	}
	r.produce(550, 500)
	x.published(10)
	x.end()
	x = r.start()
	r.produce(1050, 500)
	x.published(15)
	x.end()
	r.history("orders.dp")
	r.verified(15)
}
