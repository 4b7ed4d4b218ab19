package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// rounds returns the number of faults that the test injects: `few`, or STREAMDP_CLUSTER_ROUNDS if that is set. A test
// that runs out of time injects fewer.
func rounds(t *testing.T, few int) int {
	t.Helper()
	text := os.Getenv("STREAMDP_CLUSTER_ROUNDS")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRealKafkaCluster runs three instances on three brokers. It kills, pauses and ends instances and brokers at random
// moments. Then it judges the charges, and the outputs as their readers see them. Epochs last two seconds, so many
// faults happen while an epoch is opened. State topics are compacted meanwhile. At the end the test deletes the
// beginning of a ledger.
func TestRealKafkaCluster(t *testing.T) {
	s := newSite(t, "cluster", rand.Uint64(), 3, nil)
	s.campaign(rounds(t, 4))
	s.cutLedger()
}

// TestRealKafkaClusterMerged injects the same faults while streams are merged: each instance sums some of the
// partitions. It runs in the nightly tests.
func TestRealKafkaClusterMerged(t *testing.T) {
	n := rounds(t, 0)
	if n == 0 {
		t.Skip("needs STREAMDP_CLUSTER_ROUNDS")
	}
	s := newSite(t, "merged", rand.Uint64(), 3, func(_ int, text string) string {
		text = strings.ReplaceAll(text, "[cluster]\n", "[cluster]\nassign = \"topic\"\n")
		return strings.ReplaceAll(text, "on_horizon = ", "merge = true\non_horizon = ")
	})
	s.merged = true
	s.campaign(n)
}

// campaign injects faults and judges the result.
func (s *site) campaign(rounds int) {
	t := s.t
	t.Helper()
	s.command("cluster", "init", "-c", s.file(0))
	s.compactSoon(s.group + ".state")
	s.begin()
	s.progress(time.Now())
	f := newFaults(s)
	for i := range rounds {
		if end, ok := t.Deadline(); ok && time.Until(end) < patience+time.Minute {
			t.Logf("%d faults, then the time was over", i)
			break
		}
		f.inject(i)
	}
	v := s.finish(func() [][]line { return s.ledgers(s.group + ".ledger") })
	f.report()
	s.logState(s.group + ".state")
	for _, fault := range v.faults {
		t.Error(fault)
	}
	t.Logf("%d releases, %d of them again with the same bytes, in %d epochs; %d openings were void; %d conflicts",
		v.releases, v.duplicates, v.epochs, v.voids, v.conflicts)
}

// signal sends a signal to the process.
func (x *instance) signal(what syscall.Signal) {
	x.s.t.Helper()
	if err := x.cmd.Process.Signal(what); err != nil {
		x.s.t.Fatalf("instance %d: %v\n%s", x.number, err, x.tail(30))
	}
}

// end ends the instance with SIGTERM.
func (x *instance) end() {
	x.s.t.Helper()
	if x.cmd == nil {
		return
	}
	x.signal(syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() { ended <- x.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			x.s.t.Errorf("instance %d after SIGTERM: %v\n%s", x.number, err, x.tail(30))
		}
	case <-time.After(patience):
		x.cmd.Process.Signal(syscall.SIGQUIT) // prints where it hangs
		<-ended
		x.s.t.Errorf("instance %d did not end after SIGTERM\n%s", x.number, x.tail(300))
	}
	x.cmd = nil
}

// errors returns the instance's log lines at level ERROR.
func (x *instance) errors() (list []string) {
	data, _ := os.ReadFile(x.logFile())
	for l := range strings.Lines(string(data)) {
		if strings.Contains(l, `"level":"ERROR"`) || strings.HasPrefix(l, "panic:") ||
			strings.Contains(l, "DATA RACE") {
			list = append(list, l)
		}
	}
	return list
}

// begin creates the group's topics, and starts the feed, the watch and all instances.
func (s *site) begin() {
	s.t.Helper()
	s.watch = newWatch(s)
	s.feed = newFeed(s)
	for _, x := range s.instances {
		x.start()
	}
}

// finish waits until releases cover the whole input, ends the instances, and judges.
func (s *site) finish(ledgers func() [][]line) *verdict {
	s.t.Helper()
	e := &evidence{ends: map[task]int64{}, steps: stepsEpoch, length: stepLength}
	ends := s.feed.end()
	if s.merged { // offsets of a release are sums over the partitions; the shortest partition ends last
		e.length *= partitions
	}
	for _, t := range s.tasks() {
		if s.merged {
			e.ends[t] = partitions * slices.Min(ends[:])
			continue
		}
		p, _ := strconv.Atoi(t.partition)
		e.ends[t] = ends[p]
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		behind := slices.DeleteFunc(s.tasks(), func(t task) bool { return e.ends[t]-s.watch.end(t) < e.length })
		if len(behind) == 0 {
			break
		}
		if time.Now().After(deadline) {
			s.t.Errorf("releases are missing of %v", behind)
			break
		}
		s.alive()
	}
	for _, x := range s.instances {
		x.end()
		for _, said := range x.errors() {
			s.t.Errorf("instance %d: %s", x.number, said)
		}
	}
	e.releases = s.watch.all()
	e.ledgers = ledgers()
	return e.judge()
}

// end returns the input offset up to which a task has releases.
func (w *watch) end(t task) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ends[t]
}

// read reads the committed records of a partition up to its end.
func (s *site) read(topic string, partition int, f func(*kgo.Record)) {
	s.t.Helper()
	end := s.end(topic, partition)
	client := newClient(s.t, s.three.Addrs, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().AtStart()}}))
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for next := int64(0); next < end; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			s.t.Fatalf("%s/%d, offset %d of %d: %v", topic, partition, next, end, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() {
				f(r)
			}
		})
	}
}

// ledgers reads the lines of all shards' ledgers, and logs their size.
func (s *site) ledgers(topic string) [][]line {
	s.t.Helper()
	all := make([][]line, shards)
	lines, bytes := 0, 0
	for shard := range all {
		s.read(topic, shard, func(r *kgo.Record) {
			lines, bytes = lines+1, bytes+len(r.Value)
			l, ok, err := parseLine(r.Value, r.Timestamp)
			if err != nil {
				s.t.Errorf("%s/%d, offset %d: %v", topic, shard, r.Offset, err)
			}
			if ok {
				all[shard] = append(all[shard], l)
			}
		})
	}
	s.t.Logf("the ledgers have %d lines of %d bytes in all", lines, bytes)
	return all
}
