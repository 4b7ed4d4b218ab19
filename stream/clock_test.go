package stream_test

import (
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

// wallClock is the system's clock after somebody has set it: the wall time is wrong by some seconds, and the monotonic
// time is right.
type wallClock struct{ seconds atomic.Int64 }

func (w *wallClock) now() time.Time {
	t := time.Now()
	// A time.Time with a monotonic reading holds the wall seconds in 33 bits above 30 bits of nanoseconds.
	(*struct{ wall uint64 })(unsafe.Pointer(&t)).wall += uint64(w.seconds.Load()) << 30
	return t
}

// TestWallClock checks the layout that wallClock relies on.
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

// TestClockJumps sets the wall clock forward and back while the daemon runs. Ticks, pauses and message times are not
// affected, and releases equal those of a run without jumps. Only the retention of secrets follows the wall clock.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Archive = true
	var clock wallClock
	kept := func(o *stream.Options) {
		o.Hooks.Clock = clock.now
		o.Config.State.EpochSecretRetention = time.Hour
	}
	begun := time.Now()
	x := r.Start(kept)
	steps := 0
	for _, jump := range []int64{0, 3 * 3600, -5 * 3600, math.MaxInt32 / 4, 2 * 3600} {
		clock.seconds.Store(jump)
		r.Produce(100*steps, 200)
		steps += 2
		x.Published(uint64(steps))
	}
	took := time.Since(begun)
	if took > fixtures.Patience {
		t.Errorf("ten steps took %v", took)
	}
	fixtures.Must(t, x.Control(task.RequestOpen, epoch.OpenRequest{}))
	x.End()
	r.Archive = false
	r.History("orders.dp").Equals(t, r.Uninterrupted(uint64(steps)))

	files, err := filepath.Glob(r.File("archive-1.*"))
	fixtures.Must(t, err)
	n := 0
	var last time.Time
	for _, name := range files {
		data, err := os.ReadFile(name)
		fixtures.Must(t, err)
		list, err := state.ParseArchive(data)
		fixtures.Must(t, err)
		for _, p := range list {
			if n++; p.Time.Before(begun.Truncate(time.Millisecond)) || p.Time.After(begun.Add(took+time.Minute)) ||
				p.Time.Before(last) {
				t.Errorf("step %d has the time %v, after one of %v; the run began at %v", p.Step, p.Time, last, begun)
			}
			if !last.IsZero() && p.Time.Sub(last)%(10*time.Millisecond) != 0 {
				t.Errorf("step %d has a time %v after the one before, which is no multiple of the commit interval",
					p.Step, p.Time.Sub(last))
			}
			last = p.Time
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
		o := r.Options()
		kept(&o)
		o.Hooks.Opened = func(in *stream.Inside) { fixtures.Must(t, in.Tasks()[0].FinishClosings(t.Context())) }
		d, err := stream.New(o)
		fixtures.Must(t, err)
		d.Close()
		if _, err := os.Stat(r.File(state.SecretName(1))); (err == nil) != c.there {
			t.Errorf("with the clock set by %d s, the secret is there: %t", c.at, err == nil)
		}
	}
}

// TestAnotherBuild: a program of another version and build continues an epoch as if it had opened the epoch itself, if
// the versions of mechanism and formats agree.
func TestAnotherBuild(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start(func(o *stream.Options) { o.Version = "1.0" })
	x.Published(5)
	x.End()
	data, err := os.ReadFile(r.File(state.CheckpointName))
	fixtures.Must(t, err)
	cp, err := state.ParseCheckpoint(data)
	fixtures.Must(t, err)
	cp.Build = "go1.24.0 linux/arm64"
	fixtures.Must(t, os.WriteFile(r.File(state.CheckpointName), cp.Encode(nil), 0o600))
	r.Produce(550, 500)
	x = r.Start(func(o *stream.Options) { o.Version = "2.0" })
	x.Published(10)
	x.End()
	if got := r.Kinds(); got != "open" {
		t.Errorf("ledger: %s", got)
	}
	v := r.History("orders.dp")
	ref := r.Sibling(fixtures.With(r.Toml, `"orders.dp"`, `"reference.dp"`))
	x = ref.Start(func(o *stream.Options) { o.Version = "1.0" })
	x.Published(10)
	x.End()
	v.Equals(t, ref.History("reference.dp"))
}

// TestPartitionAdded: an added partition does not affect the tasks of the others.
func TestPartitionAdded(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 550)
	x := r.Start()
	x.Published(5)
	streamtest.AddPartitions(t, r, "orders", 2)
	if info, err := fixtures.Dial(t, r.Addr).Topic(t.Context(), "orders"); err != nil || len(info.Partitions) != 2 {
		t.Fatalf("%+v %v", info, err)
	}
	r.Produce(550, 500)
	x.Published(10)
	x.End()
	x = r.Start()
	r.Produce(1050, 500)
	x.Published(15)
	x.End()
	r.History("orders.dp")
	r.Verified(15)
}
