package chaos

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRealKafkaTakeover repeatedly kills one of three instances. It logs how long each of the instance's tasks took to
// publish again, from the signal until the brokers have the next release. Each task has ten steps a second, so a step
// is always due. No epoch ends meanwhile, so the times include no opening of an epoch. The test needs
// STREAMDP_CLUSTER_ROUNDS, the number of kills.
func TestRealKafkaTakeover(t *testing.T) {
	n := rounds(t, 0)
	if n == 0 {
		t.Skip("needs STREAMDP_CLUSTER_ROUNDS")
	}
	s := newSite(t, "takeover", rand.Uint64(), 3, func(_ int, text string) string {
		text = strings.ReplaceAll(text, "horizon = 20\n", "horizon = 100000\n")
		return strings.ReplaceAll(text, `commit_interval = "20ms"`, `commit_interval = "200ms"`)
	})
	s.command("cluster", "init", "-c", s.file(0))
	s.begin()
	s.progress(time.Now())
	var moved, last []time.Duration
	for i := range n {
		x := s.instances[i%len(s.instances)]
		time.Sleep(2 * time.Second) // until tasks have stopped moving between instances
		before := s.gaps(time.Now().Add(-time.Second))
		now := time.Now()
		x.kill()
		longest := s.progress(now)
		x.start()
		time.Sleep(time.Second)
		after := s.gaps(now)
		var tasks []time.Duration
		for k, gap := range after {
			if gap > before[k]+session/2 { // leaves out the tasks of other instances, which continued
				tasks = append(tasks, gap)
			}
		}
		t.Logf("%s: instance %d: %d tasks stood still, the last one published after %v",
			now.UTC().Format("15:04:05.000"), x.number, len(tasks), longest.Round(time.Millisecond))
		moved, last = append(moved, tasks...), append(last, longest)
		s.progress(time.Now())
	}
	for what, list := range map[string][]time.Duration{"each task": moved, "the last task of each kill": last} {
		t.Logf("%s published again, with a session of %v: median %v, 99 %% %v, longest %v, of %d", what, session,
			quantile(list, 0.5).Round(time.Millisecond), quantile(list, 0.99).Round(time.Millisecond),
			slices.Max(list).Round(time.Millisecond), len(list))
	}
	for _, x := range s.instances {
		x.end()
	}
}

// gaps returns the time from `since` to the next release of each task, or 0 if it has not published one.
func (s *site) gaps(since time.Time) map[task]time.Duration {
	all := map[task]time.Duration{}
	for _, k := range s.tasks() {
		if at, ok := s.watch.next(k, since); ok {
			all[k] = at.Sub(since)
		}
	}
	return all
}
