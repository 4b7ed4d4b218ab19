package cluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/ledger"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
)

// sharedRun is the scenario of disk_test.go for a shard in logs: two whole epochs and a step, each in its own commit.
type sharedRun struct {
	r *streamtest.Rig
	h *streamtest.HeldShard
}

func newSharedRun(t testing.TB) *sharedRun {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	fixtures.Must(t, err)
	t.Cleanup(b.Close)
	r := streamtest.NewRigAt(t, b, b.Addr(), fixtures.RolloverStream)
	r.Commit = "0s"
	r.Produce(0, fixtures.ScenarioRecords)
	return &sharedRun{r, streamtest.NewHeldShard()}
}

// run runs a daemon until everything is published, or some steps are, or its shard is lost.
func (s *sharedRun) run(t testing.TB, releases int) error {
	t.Helper()
	h := s.h
	s.r.Shared = h
	var d atomic.Pointer[stream.Daemon]
	s.r.Before = func(x *stream.Daemon) { d.Store(x) }
	x, err := s.r.Try(func(o *stream.Options) {
		wake := o.Hooks.Observe
		o.Hooks.Observe = func() {
			wake()
			if x := d.Load(); x != nil {
				for _, st := range x.Status() {
					h.Mu.Lock()
					if st.Step > 0 && !h.Charged("orders-0", st.Epoch) {
						h.Wrong = append(h.Wrong,
							fmt.Sprintf("step %d of epoch %d has its noise before its charge", st.Step, st.Epoch))
					}
					h.Mu.Unlock()
				}
			}
		}
	})
	if err != nil {
		return err
	}
	late := time.NewTimer(fixtures.Patience)
	defer late.Stop()
	for {
		select {
		case <-x.Done:
			return x.Result
		case <-x.Wake:
		case <-late.C:
			t.Fatalf("not done: %+v\n%s", x.D.Status()[0], s.r.Log)
		}
		st := x.D.Status()[0]
		done := st.Epoch > 0 && st.State == monitor.StateRunning && st.NextOffset == fixtures.ScenarioRecords &&
			st.Outbox == 0
		if done || releases > 0 && int(st.Epoch-1)*3+int(st.Step) >= releases {
			x.Stop()
			return x.Ends()
		}
	}
}

// faultless fails if anything has happened so far that must not.
func (s *sharedRun) faultless(t testing.TB) {
	t.Helper()
	for _, w := range s.h.Wrong {
		t.Error(w)
	}
	for _, p := range s.r.Output("orders.dp") {
		if most := s.h.Committed(p.Epoch); p.Step > most {
			t.Errorf("%s was published, and step %d is committed", p.Key, most)
		}
	}
}

// TestLogShard: a shard in logs releases the same bytes as one in files, even if the process restarts in between. An
// opening is one update. In the end, nothing is left that must end with an epoch.
func TestLogShard(t *testing.T) {
	t.Parallel()
	refs := []fixtures.EpochReference{streamtest.Reference(t, 0)}
	for _, pause := range []int{0, 2, 4} {
		s := newSharedRun(t)
		if pause > 0 {
			fixtures.Must(t, s.run(t, pause))
			s.faultless(t)
			s.h = s.h.Again()
		}
		fixtures.Must(t, s.run(t, 0))
		s.faultless(t)
		(&streamtest.Scenario{R: s.r}).Same(t, refs)
		kinds := slices.DeleteFunc(slices.Clone(s.h.Updates), func(words string) bool { return words == "" })
		if got := strings.Join(kinds, ", "); got != "open, close, key-destroyed, open, close, key-destroyed, open" {
			t.Errorf("updates with lines: %s", got)
		}
		var left []string
		for key := range s.h.Stored {
			left = append(left, key)
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != "orders-0/checkpoint orders-0/manifest-3 orders-0/secret-3" {
			t.Errorf("left: %s", got)
		}
	}
}

// TestLogShardFaults: each update in turn is refused, or is committed without an answer. Then the tasks end: nothing is
// published that is not committed, no noise is drawn without its charge, and the ledger remains one chain. The next
// process finds the whole update or nothing of it, and publishes the remaining releases. The test picks one of the two
// faults at random; with STREAMDP_SLOW=1 it tests both.
func TestLogShardFaults(t *testing.T) {
	t.Parallel()
	refs := []fixtures.EpochReference{streamtest.Reference(t, 0)}
	first := newSharedRun(t)
	fixtures.Must(t, first.run(t, 0))
	for k := range first.h.Calls {
		for _, late := range []bool{false, true} {
			if drawn := rand.New(rand.NewPCG(uint64(k), 5)).IntN(2) == 1; os.Getenv("STREAMDP_SLOW") == "" &&
				late != drawn {
				continue
			}
			s := newSharedRun(t)
			s.h.Fault, s.h.Late = k, late
			if err := s.run(t, 0); errors.Is(err, cluster.ErrLost) != s.h.Broken {
				t.Errorf("update %d failed: %t, and the daemon ended with %v", k, s.h.Broken, err)
			}
			s.faultless(t)
			s.h = s.h.Again()
			if err := s.run(t, 0); err != nil {
				t.Errorf("update %d, late %t: %v", k, late, err)
			}
			s.faultless(t)
			(&streamtest.Scenario{R: s.r}).Same(t, refs)
			if t.Failed() {
				t.Fatalf("update %d, late %t\n%s", k, late, s.r.Log)
			}
			s.r.Client.Close()
			s.r.Broker.Close()
		}
	}
	t.Logf("%d updates", first.h.Calls)
}

// TestLogShardRestored: both logs of a shard are set back, as from a backup, and no instance has a witness. The task
// notices this from the output. Within an epoch, it recomputes the published steps with the same bytes; if the output
// has an epoch that is not in the ledger, the task halts.
func TestLogShardRestored(t *testing.T) {
	t.Parallel()
	refs := []fixtures.EpochReference{streamtest.Reference(t, 0)}
	for _, published := range []int{3, 4} { // the first epoch, and a step of the second
		s := newSharedRun(t)
		fixtures.Must(t, s.run(t, 1))
		backup := s.h.Again()
		s.h = s.h.Again()
		fixtures.Must(t, s.run(t, published))
		s.h = backup
		if published == 3 {
			fixtures.Must(t, s.run(t, 0))
			(&streamtest.Scenario{R: s.r}).Same(t, refs)
			continue
		}
		s.r.Shared, s.r.Prepare = s.h, nil
		x := s.r.Start()
		x.Halts(failure.OutputAhead, "epoch 2")
		if len(s.h.Ledger) != 1 {
			t.Errorf("%d lines of the ledger", len(s.h.Ledger))
		}
		x.Stop()
		if err := x.Ends(); !errors.Is(err, failure.ErrHalted) {
			t.Errorf("ended with %v", err)
		}
	}
}

// TestLogShardTaken: another instance has acquired the shard and opened an epoch, as if this process had been
// suspended. So the output has an epoch that is not in this process's ledger. The task does not halt: the shard is
// lost. The process checks its ownership (Affirm) only before a halt.
func TestLogShardTaken(t *testing.T) {
	t.Parallel()
	s := newSharedRun(t)
	fixtures.Must(t, s.run(t, 1))
	stopped := s.h.Again()
	s.h = s.h.Again()
	fixtures.Must(t, s.run(t, 4)) // the first epoch, and a step of the second
	if s.h.Affirmed != 0 {
		t.Errorf("without a halt the owner was asked %d times", s.h.Affirmed)
	}
	s.h = stopped
	stopped.Taken = true
	if err := s.run(t, 0); !errors.Is(err, cluster.ErrLost) {
		t.Errorf("ended with %v", err)
	}
	if log := s.r.Log.String(); stopped.Affirmed != 1 || strings.Contains(log, "task halted") {
		t.Errorf("the owner was asked %d times\n%s", stopped.Affirmed, log)
	}
	for _, w := range stopped.Wrong {
		t.Error(w)
	}
	if len(stopped.Ledger) != 1 {
		t.Errorf("%d lines of the ledger", len(stopped.Ledger))
	}
}

// TestLogShardTogether: changes that are due while an update is in progress are written in one update.
func TestLogShardTogether(t *testing.T) {
	t.Parallel()
	h := streamtest.NewHeldShard()
	h.Hold = make(chan struct{})
	s, err := cluster.NewShard(h)
	fixtures.Must(t, err)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		dir := fmt.Sprintf("%s/orders-%d", cluster.LogTasks, i)
		fixtures.Must(t, s.MkdirAll(dir))
		wg.Go(func() {
			if err := s.Atomically(dir,
				func() error { return state.WriteNew(s, dir+"/manifest-1", []byte{byte(i)}) }); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			fixtures.Gathered(func() int {
				(*s.Mu()).Lock()
				defer (*s.Mu()).Unlock()
				return len((*s.Waiting())) - len((*s.Queue()))
			}, 1)
		}
	}
	fixtures.Gathered(func() int {
		(*s.Mu()).Lock()
		defer (*s.Mu()).Unlock()
		return len((*s.Waiting()))
	}, n)
	close(h.Hold)
	wg.Wait()
	if h.Calls != 2 || len(h.Stored) != n {
		t.Errorf("%d updates made %d values durable", h.Calls, len(h.Stored))
	}
}

// TestLogShardFiles: after another acquisition, all files have the content of the last update, and each is stored in
// few values. Files that are sealed under a secret disappear with it.
func TestLogShardFiles(t *testing.T) {
	t.Parallel()
	h := streamtest.NewHeldShard()
	s, err := cluster.NewShard(h)
	fixtures.Must(t, err)
	dir := cluster.LogTasks + "/orders-0"
	fixtures.Must(t, s.MkdirAll(dir))
	read := func(name string) []byte {
		data, _ := s.ReadFile(dir + "/" + name)
		return data
	}
	again := func() {
		t.Helper()
		h = h.Again()
		if s, err = cluster.NewShard(h); err != nil {
			t.Fatal(err)
		}
		for _, w := range h.Wrong {
			t.Error(w)
		}
	}
	// An incomplete file stays in memory, even if another one is made durable.
	half, err := s.Create(dir + "/" + state.TemporaryName)
	fixtures.Must(t, state.Write(half, err, []byte("half")))
	fixtures.Must(t, state.WriteNew(s, dir+"/manifest-9", []byte("whole")))
	if len(h.Stored) != 1 {
		t.Errorf("%d values, want the whole file's", len(h.Stored))
	}
	fixtures.Must(t, state.RemoveAll(s, dir, state.TemporaryName, "manifest-9"))
	rng := rand.New(rand.NewPCG(1, 2))
	var want []byte
	f, err := s.Create(dir + "/archive-1.1")
	fixtures.Must(t, err)
	for i := range 150 {
		part := bytes.Repeat([]byte{byte(i)}, 1+rng.IntN(3000))
		_, err := f.Write(part)
		fixtures.Must(t, err)
		fixtures.Must(t, f.Sync())
		want = append(want, part...)
		switch i {
		case 50:
			early := h.Stored[fmt.Sprint("orders-0/archive-1.1#", len((*s.Parts())[dir+"/archive-1.1"])-1)].Data
			was := bytes.Clone(early)
			want = want[:len(want)-2500]
			fixtures.Must(t, s.Truncate(dir+"/archive-1.1", int64(len(want))))
			defer func() {
				if !bytes.Equal(early, was) {
					t.Error("bytes of an update changed after it had begun")
				}
			}()
		case 100:
			again()
			f, err = s.Append(dir + "/archive-1.1")
			fixtures.Must(t, err)
		}
		n, all := 0, []byte{}
		for v, ok := h.Stored["orders-0/archive-1.1#0"]; ok; v, ok = h.Stored[fmt.Sprint("orders-0/archive-1.1#", n)] {
			all = append(all, v.Data...)
			n++
		}
		if n > 12 || !bytes.Equal(all, want) {
			t.Fatalf("after %d appends: %d values of %d bytes, want %d bytes", i, n, len(all), len(want))
		}
	}
	again()
	if !bytes.Equal(read("archive-1.1"), want) {
		t.Error("the archive is another one")
	}

	secret := func(n uint64) { fixtures.Must(t, state.WriteNew(s, dir+"/"+state.SecretName(n), []byte{byte(n)})) }
	secret(1)
	secret(2)
	cp := (&state.Checkpoint{Epoch: 2, OutputTopic: "o"}).Encode(nil)
	fixtures.Must(t, state.WriteOver(s, dir+"/checkpoint", cp))
	fixtures.Must(t, state.WriteNew(s, dir+"/initial-1", []byte("one")))
	fixtures.Must(t, state.WriteNew(s, dir+"/final-1", []byte("end")))
	again()
	if names, err := s.ReadDir(dir); err != nil ||
		strings.Join(names, " ") != "archive-1.1 checkpoint final-1 initial-1 secret-1 secret-2" {
		t.Errorf("files %v %v", names, err)
	}
	fixtures.Must(t, state.RemoveAll(s, dir, state.SecretName(1), state.InitialName(1)))
	fixtures.Must(t, state.RemoveAll(s, dir, state.SecretName(2)))
	again()
	if names, err := s.ReadDir(dir); err != nil || strings.Join(names, " ") != "archive-1.1 final-1" {
		t.Errorf("files after their secrets %v %v", names, err)
	}
}

// TestLogShardSections: if a section fails without changing anything, it has no effect. If it fails after a change, the
// shard is lost; so it is after a ledger line outside of a section. A lost shard accepts no writes.
func TestLogShardSections(t *testing.T) {
	t.Parallel()
	dir := cluster.LogTasks + "/orders-0"
	begin := func() (*streamtest.HeldShard, *cluster.Shard) {
		h := streamtest.NewHeldShard()
		s, err := cluster.NewShard(h)
		fixtures.Must(t, err)
		fixtures.Must(t, s.MkdirAll(dir))
		return h, s
	}
	stop := errors.New("stop")
	mark := func(s *cluster.Shard) error {
		f, err := s.Append(dir + "/opening-1")
		return state.Write(f, err, nil)
	}

	h, s := begin()
	err := s.Atomically(dir, func() error {
		fixtures.Must(t, mark(s))
		fixtures.Must(t, state.RemoveAll(s, dir, "opening-1"))
		return stop
	})
	if !errors.Is(err, stop) || h.Calls != 0 || s.Lost() {
		t.Errorf("nothing changed: %v, %d updates", err, h.Calls)
	}
	fixtures.Must(t, s.Atomically(dir, func() error {
		fixtures.Must(t, mark(s))
		if h.Calls != 0 {
			t.Error("durable within a section")
		}
		return nil
	}))
	if h.Calls != 1 || len(h.Stored) != 1 {
		t.Errorf("%d updates of %d values", h.Calls, len(h.Stored))
	}

	h, s = begin()
	err = s.Atomically(dir, func() error {
		fixtures.Must(t, mark(s))
		return stop
	})
	if !errors.Is(err, cluster.ErrLost) || h.Calls != 0 || !s.Lost() {
		t.Errorf("half of a change: %v, %d updates", err, h.Calls)
	}
	if err := s.Atomically(dir, func() error { t.Error("a section of a lost shard"); return nil }); !errors.Is(err,
		cluster.ErrLost) {
		t.Errorf("after it was lost: %v", err)
	}
	for _, err := range []error{
		mark(s), s.Remove(dir + "/opening-1"), s.SyncDir(dir), state.WriteNew(s, dir+"/manifest-1", nil),
		s.Rename(dir+"/opening-1", dir+"/x"),
	} {
		if !errors.Is(err, cluster.ErrLost) {
			t.Errorf("a lost shard took a write: %v", err)
		}
	}

	h, s = begin()
	l, err := ledger.Open(s, "", ledger.NewKey(connect.InsecureKey(1)))
	fixtures.Must(t, err)
	e := streamtest.Charging(1, 0, 100, dp.ZeroOut, 0.125)
	if _, err := l.Open(e); !errors.Is(err, cluster.ErrLost) || h.Calls != 0 {
		t.Errorf("a line outside of a section: %v, %d updates", err, h.Calls)
	}

	h, s = begin()
	close(h.Done) // as if the hourly record had found another owner
	if !s.Lost() {
		t.Error("the protocol says that the shard is lost, and it is not")
	}
}

// TestShardFull: if a shard has no room for an epoch, its task halts, nothing is charged, and the shard is unchanged.
func TestShardFull(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 250)
	h := streamtest.NewHeldShard()
	r.Shared = h
	r.Prepare = func(in *stream.Inside) { (*in.Own.Disk.(*cluster.Shard).Room()) = 100 }
	x := r.Start()
	x.Halts(failure.Configuration, "room for only 100")
	if h.Calls != 0 || x.In.Own.Disk.Lost() {
		t.Errorf("%d updates, lost %t", h.Calls, x.In.Own.Disk.Lost())
	}
	x.Stop()
	if err := x.Ends(); !errors.Is(err, failure.ErrHalted) {
		t.Errorf("ended with %v", err)
	}

	r.Prepare = func(in *stream.Inside) { (*in.Own.Disk.(*cluster.Shard).Line()) = 4000 }
	x = r.Start()
	x.Halts(failure.Configuration, "at most 4000")
	x.Stop()
	if err := x.Ends(); h.Calls != 0 || !errors.Is(err, failure.ErrHalted) {
		t.Errorf("%d updates, ended with %v", h.Calls, err)
	}

	r.Prepare = nil
	x = r.Start()
	x.Published(2)
	x.End()
	used := 0
	for _, v := range h.Stored {
		used += len(v.Data)
	}
	s, err := cluster.NewShard(h)
	fixtures.Must(t, err)
	if got := epoch.ShardStates - s.Left(); got != used {
		t.Errorf("%d bytes are used, it says %d", used, got)
	}
}
