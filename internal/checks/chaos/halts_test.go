package chaos

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// cutLedger deletes the beginning of a shard's ledger while no instance runs. The shard must halt and spend nothing;
// the others must continue.
func (s *site) cutLedger() {
	t := s.t
	t.Helper()
	x := s.instances[0]
	s.feed = newFeed(s)
	group := config.Cluster{Group: s.group, Shards: shards}
	cut := group.Shard(s.in, 0)
	kafkatest.DeleteRecords(t, s.three.Addrs, s.group+".ledger", int32(cut), 2)
	lines := s.end(s.group+".ledger", cut)
	quiet := map[task]int{} // the number of releases of each task of the shard
	for _, of := range s.tasks() {
		if p, _ := strconv.Atoi(of.partition); group.Shard(s.in, p) == cut {
			quiet[of] = -1
		}
	}
	if len(quiet) == 0 || len(quiet) == len(s.tasks()) {
		t.Fatalf("%d of %d tasks are in shard %d", len(quiet), len(s.tasks()), cut)
	}
	x.start()
	now := time.Now()
	for deadline := now.Add(patience); ; time.Sleep(20 * time.Millisecond) {
		behind := 0
		for _, of := range s.tasks() {
			if _, published := s.watch.next(of, now); quiet[of] == 0 && !published {
				behind++
			}
		}
		if behind == 0 && strings.Contains(x.tail(1000), "shard halted") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d tasks of other shards do not continue, or the shard has not halted", behind)
		}
		s.alive()
	}
	time.Sleep(time.Second) // no release may come meanwhile
	for of := range quiet {
		if at, published := s.watch.next(of, now); published {
			t.Errorf("%s published %v after the start, although its ledger has lost its beginning", of, at.Sub(now))
		}
	}
	if said := fmt.Sprintf(`"shard":%d`, cut); !strings.Contains(strings.Join(x.errors(), ""), said) {
		t.Errorf("the instance does not say that shard %d halted: %s", cut, x.errors())
	}
	x.end()
	// Taking over a shard writes only to the state topic, so the ledger must not have grown.
	if now := s.end(s.group+".ledger", cut); now != lines {
		t.Errorf("the ledger grew from %d to %d", lines, now)
	}
	s.feed.end()
}
