package stream

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
)

// sharedRun is the scenario of disk_test.go over a shard in logs: two whole epochs and a step, each
// commit for itself.
type sharedRun struct {
	r *rig
	h *heldShard
}

func newSharedRun(t testing.TB) *sharedRun {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Topics: []string{"orders"}})
	must(t, err)
	t.Cleanup(b.Close)
	r := newRigAt(t, b, b.Addr(), rolloverStream)
	r.commit = "0s"
	r.produce(0, scenarioRecords)
	return &sharedRun{r, newHeldShard()}
}

// run runs a daemon until everything is published, or until it has published some steps, or its
// shard is lost.
func (s *sharedRun) run(t testing.TB, releases int) error {
	t.Helper()
	h := s.h
	s.r.shared = h
	var d atomic.Pointer[Daemon]
	s.r.before = func(x *Daemon) { d.Store(x) }
	x, err := s.r.try(func(o *Options) {
		wake := o.Hooks.Observe
		o.Hooks.Observe = func() {
			wake()
			if x := d.Load(); x != nil {
				for _, st := range x.Status() {
					h.mu.Lock()
					if st.Step > 0 && !h.charged("orders-0", st.Epoch) {
						h.wrong = append(h.wrong, fmt.Sprintf("step %d of epoch %d has its noise before its charge", st.Step, st.Epoch))
					}
					h.mu.Unlock()
				}
			}
		}
	})
	if err != nil {
		return err
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case <-x.done:
			return x.result
		case <-x.wake:
		case <-late.C:
			t.Fatalf("not done: %+v\n%s", x.d.Status()[0], s.r.log)
		}
		st := x.d.Status()[0]
		done := st.Epoch > 0 && st.State == stateRunning && st.NextOffset == scenarioRecords && st.Outbox == 0
		if done || releases > 0 && int(st.Epoch-1)*3+int(st.Step) >= releases {
			x.stop()
			return x.ends()
		}
	}
}

// faultless fails if anything happened that must not, up to now.
func (s *sharedRun) faultless(t testing.TB) {
	t.Helper()
	for _, w := range s.h.wrong {
		t.Error(w)
	}
	for _, p := range s.r.output("orders.dp") {
		if most := s.h.committed(p.epoch); p.step > most {
			t.Errorf("%s was published, and step %d is committed", p.key, most)
		}
	}
}

// TestLogShard: over a shard in logs the same is released as over files, byte for byte, also if the
// process begins again in between. An opening is one update. In the end nothing is left of what
// ends with an epoch.
func TestLogShard(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0)}
	for _, pause := range []int{0, 2, 4} {
		s := newSharedRun(t)
		if pause > 0 {
			must(t, s.run(t, pause))
			s.faultless(t)
			s.h = s.h.again()
		}
		must(t, s.run(t, 0))
		s.faultless(t)
		(&scenario{r: s.r}).same(t, refs)
		kinds := slices.DeleteFunc(slices.Clone(s.h.updates), func(words string) bool { return words == "" })
		if got := strings.Join(kinds, ", "); got != "open, close, key-destroyed, open, close, key-destroyed, open" {
			t.Errorf("updates with lines: %s", got)
		}
		var left []string
		for key := range s.h.values {
			left = append(left, key)
		}
		slices.Sort(left)
		if got := strings.Join(left, " "); got != "orders-0/checkpoint orders-0/manifest-3 orders-0/secret-3" {
			t.Errorf("left: %s", got)
		}
	}
}

// TestLogShardFaults: each update is once refused, or committed and not answered. Then the tasks
// end: nothing is published that is not committed, there is no noise without its charge, and the
// ledger stays one. The next process finds all of an update or nothing, and releases what was to be
// released. Which of both happens is drawn; with STREAMDP_SLOW=1 it is both.
func TestLogShardFaults(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0)}
	first := newSharedRun(t)
	must(t, first.run(t, 0))
	for k := range first.h.calls {
		for _, late := range []bool{false, true} {
			if drawn := rand.New(rand.NewPCG(uint64(k), 5)).IntN(2) == 1; os.Getenv("STREAMDP_SLOW") == "" && late != drawn {
				continue
			}
			s := newSharedRun(t)
			s.h.fault, s.h.late = k, late
			if err := s.run(t, 0); errors.Is(err, errLost) != s.h.broken {
				t.Errorf("update %d failed: %t, and the daemon ended with %v", k, s.h.broken, err)
			}
			s.faultless(t)
			s.h = s.h.again()
			if err := s.run(t, 0); err != nil {
				t.Errorf("update %d, late %t: %v", k, late, err)
			}
			s.faultless(t)
			(&scenario{r: s.r}).same(t, refs)
			if t.Failed() {
				t.Fatalf("update %d, late %t\n%s", k, late, s.r.log)
			}
			s.r.client.Close()
			s.r.broker.Close()
		}
	}
	t.Logf("%d updates", first.h.calls)
}

// TestLogShardRestored: both logs of a shard are set back, as from a backup, and no instance has a
// witness. The output tells. Within an epoch the steps that are published are computed again, and
// are the same; where it has an epoch that the ledger does not know, the task halts.
func TestLogShardRestored(t *testing.T) {
	t.Parallel()
	refs := []epochReference{reference(t, 0)}
	for _, published := range []int{3, 4} { // the first epoch, and a step of the second
		s := newSharedRun(t)
		must(t, s.run(t, 1))
		backup := s.h.again()
		s.h = s.h.again()
		must(t, s.run(t, published))
		s.h = backup
		if published == 3 {
			must(t, s.run(t, 0))
			(&scenario{r: s.r}).same(t, refs)
			continue
		}
		s.r.shared, s.r.prepare = s.h, nil
		x := s.r.start()
		x.halts(haltOutput, "epoch 2")
		if len(s.h.lines) != 1 {
			t.Errorf("%d lines of the ledger", len(s.h.lines))
		}
		x.stop()
		if err := x.ends(); !errors.Is(err, ErrHalted) {
			t.Errorf("ended with %v", err)
		}
	}
}

// TestLogShardTaken: where another instance has taken the shard and opened an epoch, as after this
// one's process was stopped for a while, the output has what its ledger does not know. That is no
// halt: the shard is lost. Its owner alone is asked, and only before a halt.
func TestLogShardTaken(t *testing.T) {
	t.Parallel()
	s := newSharedRun(t)
	must(t, s.run(t, 1))
	stopped := s.h.again()
	s.h = s.h.again()
	must(t, s.run(t, 4)) // the first epoch, and a step of the second
	if s.h.affirmed != 0 {
		t.Errorf("without a halt the owner was asked %d times", s.h.affirmed)
	}
	s.h = stopped
	stopped.taken = true
	if err := s.run(t, 0); !errors.Is(err, errLost) {
		t.Errorf("ended with %v", err)
	}
	if log := s.r.log.String(); stopped.affirmed != 1 || strings.Contains(log, "task halted") {
		t.Errorf("the owner was asked %d times\n%s", stopped.affirmed, log)
	}
	for _, w := range stopped.wrong {
		t.Error(w)
	}
	if len(stopped.lines) != 1 {
		t.Errorf("%d lines of the ledger", len(stopped.lines))
	}
}

// TestLogShardTogether: what is due while an update is under way goes out in one.
func TestLogShardTogether(t *testing.T) {
	t.Parallel()
	h := newHeldShard()
	h.hold = make(chan struct{})
	s, err := newLogShard(h)
	must(t, err)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		dir := fmt.Sprintf("%s/orders-%d", logTasks, i)
		must(t, s.MkdirAll(dir))
		wg.Go(func() {
			if err := s.atomically(dir, func() error { return writeNew(s, dir+"/manifest-1", []byte{byte(i)}) }); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			gathered(func() int {
				s.mu.Lock()
				defer s.mu.Unlock()
				return len(s.waiting) - len(s.queue)
			}, 1)
		}
	}
	gathered(func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting)
	}, n)
	close(h.hold)
	wg.Wait()
	if h.calls != 2 || len(h.values) != n {
		t.Errorf("%d updates made %d values durable", h.calls, len(h.values))
	}
}

// TestLogShardFiles: files are after another acquisition as they were after the last update, in
// few values each. What ends with a secret goes with it.
func TestLogShardFiles(t *testing.T) {
	t.Parallel()
	h := newHeldShard()
	s, err := newLogShard(h)
	must(t, err)
	dir := logTasks + "/orders-0"
	must(t, s.MkdirAll(dir))
	read := func(name string) []byte {
		data, _ := s.ReadFile(dir + "/" + name)
		return data
	}
	again := func() {
		t.Helper()
		h = h.again()
		if s, err = newLogShard(h); err != nil {
			t.Fatal(err)
		}
		for _, w := range h.wrong {
			t.Error(w)
		}
	}
	// What is not complete yet stays in memory, also if something else is made durable.
	half, err := s.Create(dir + "/" + temporaryName)
	must(t, write(half, err, []byte("half")))
	must(t, writeNew(s, dir+"/manifest-9", []byte("whole")))
	if len(h.values) != 1 {
		t.Errorf("%d values, want the whole file's", len(h.values))
	}
	must(t, removeAll(s, dir, temporaryName, "manifest-9"))
	rng := rand.New(rand.NewPCG(1, 2))
	var want []byte
	f, err := s.Create(dir + "/archive-1.1")
	must(t, err)
	for i := range 150 {
		part := bytes.Repeat([]byte{byte(i)}, 1+rng.IntN(3000))
		_, err := f.Write(part)
		must(t, err)
		must(t, f.Sync())
		want = append(want, part...)
		switch i {
		case 50:
			early := h.values[fmt.Sprint("orders-0/archive-1.1#", len(s.parts[dir+"/archive-1.1"])-1)].Data
			was := bytes.Clone(early)
			want = want[:len(want)-2500]
			must(t, s.Truncate(dir+"/archive-1.1", int64(len(want))))
			defer func() {
				if !bytes.Equal(early, was) {
					t.Error("bytes of an update changed after it had begun")
				}
			}()
		case 100:
			again()
			f, err = s.Append(dir + "/archive-1.1")
			must(t, err)
		}
		n, all := 0, []byte{}
		for v, ok := h.values["orders-0/archive-1.1#0"]; ok; v, ok = h.values[fmt.Sprint("orders-0/archive-1.1#", n)] {
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

	secret := func(n uint64) { must(t, writeNew(s, dir+"/"+secretName(n), []byte{byte(n)})) }
	secret(1)
	secret(2)
	cp := (&checkpoint{epoch: 2, outputTopic: "o"}).encode(nil)
	must(t, writeOver(s, dir+"/checkpoint", cp))
	must(t, writeNew(s, dir+"/initial-1", []byte("one")))
	must(t, writeNew(s, dir+"/final-1", []byte("end")))
	again()
	if names, err := s.ReadDir(dir); err != nil || strings.Join(names, " ") != "archive-1.1 checkpoint final-1 initial-1 secret-1 secret-2" {
		t.Errorf("files %v %v", names, err)
	}
	must(t, removeAll(s, dir, secretName(1), initialName(1)))
	must(t, removeAll(s, dir, secretName(2)))
	again()
	if names, err := s.ReadDir(dir); err != nil || strings.Join(names, " ") != "archive-1.1 final-1" {
		t.Errorf("files after their secrets %v %v", names, err)
	}
}

// TestLogShardSections: a section that changes nothing and fails is none; one that fails halfway
// ends the shard, and so does a line of the ledger outside of one. A lost shard takes nothing.
func TestLogShardSections(t *testing.T) {
	t.Parallel()
	dir := logTasks + "/orders-0"
	begin := func() (*heldShard, *logShard) {
		h := newHeldShard()
		s, err := newLogShard(h)
		must(t, err)
		must(t, s.MkdirAll(dir))
		return h, s
	}
	stop := errors.New("stop")
	mark := func(s *logShard) error {
		f, err := s.Append(dir + "/opening-1")
		return write(f, err, nil)
	}

	h, s := begin()
	err := s.atomically(dir, func() error {
		must(t, mark(s))
		must(t, removeAll(s, dir, "opening-1"))
		return stop
	})
	if !errors.Is(err, stop) || h.calls != 0 || s.lost() {
		t.Errorf("nothing changed: %v, %d updates", err, h.calls)
	}
	must(t, s.atomically(dir, func() error {
		must(t, mark(s))
		if h.calls != 0 {
			t.Error("durable within a section")
		}
		return nil
	}))
	if h.calls != 1 || len(h.values) != 1 {
		t.Errorf("%d updates of %d values", h.calls, len(h.values))
	}

	h, s = begin()
	err = s.atomically(dir, func() error {
		must(t, mark(s))
		return stop
	})
	if !errors.Is(err, errLost) || h.calls != 0 || !s.lost() {
		t.Errorf("half of a change: %v, %d updates", err, h.calls)
	}
	if err := s.atomically(dir, func() error { t.Error("a section of a lost shard"); return nil }); !errors.Is(err, errLost) {
		t.Errorf("after it was lost: %v", err)
	}
	for _, err := range []error{mark(s), s.Remove(dir + "/opening-1"), s.SyncDir(dir), writeNew(s, dir+"/manifest-1", nil), s.Rename(dir+"/opening-1", dir+"/x")} {
		if !errors.Is(err, errLost) {
			t.Errorf("a lost shard took a write: %v", err)
		}
	}

	h, s = begin()
	l, err := openLedger(s, "", newLedgerKey(InsecureKey(1)))
	must(t, err)
	e := charging(1, 0, 100, dp.ZeroOut, 0.125)
	if _, err := l.open(e); !errors.Is(err, errLost) || h.calls != 0 {
		t.Errorf("a line outside of a section: %v, %d updates", err, h.calls)
	}

	h, s = begin()
	close(h.lost) // the hourly record found another owner
	if !s.lost() {
		t.Error("the protocol says that the shard is lost, and it is not")
	}
}

// TestShardFull: where a shard has no room for an epoch, its task halts, nothing is charged, and
// the shard is as before.
func TestShardFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 250)
	h := newHeldShard()
	r.shared = h
	r.prepare = func(in *Inside) { in.Own.disk.(*logShard).room = 100 }
	x := r.start()
	x.halts(haltConfiguration, "room for 100")
	if h.calls != 0 || x.in.Own.disk.lost() {
		t.Errorf("%d updates, lost %t", h.calls, x.in.Own.disk.lost())
	}
	x.stop()
	if err := x.ends(); !errors.Is(err, ErrHalted) {
		t.Errorf("ended with %v", err)
	}

	r.prepare = func(in *Inside) { in.Own.disk.(*logShard).line = 4000 }
	x = r.start()
	x.halts(haltConfiguration, "at most 4000")
	x.stop()
	if err := x.ends(); h.calls != 0 || !errors.Is(err, ErrHalted) {
		t.Errorf("%d updates, ended with %v", h.calls, err)
	}

	r.prepare = nil
	x = r.start()
	x.published(2)
	x.end()
	used := 0
	for _, v := range h.values {
		used += len(v.Data)
	}
	s, err := newLogShard(h)
	must(t, err)
	if got := shardStates - s.left(); got != used {
		t.Errorf("%d bytes are used, it says %d", used, got)
	}
}
