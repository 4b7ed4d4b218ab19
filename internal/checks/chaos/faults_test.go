package chaos

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// faults injects faults into a site, one after the other. It records for how long tasks did not publish.
type faults struct {
	s        *site
	done     map[string]int
	takeover []time.Duration // after an instance died
	handover []time.Duration // after an instance ended in an orderly way
}

func newFaults(s *site) *faults { return &faults{s: s, done: map[string]int{}} }

// kinds are the faults. A short test injects the first four.
var kinds = []string{
	"instance killed", "instance stopped beyond its session", "instance ended", "broker killed",
	"instance killed and back at once", "instance stopped for a moment", "all instances killed",
	"two instances stopped",
	"broker stopped", "broker and instance killed", "two brokers killed",
}

// inject injects the fault of a round, at a random moment, and returns when all tasks publish again.
func (f *faults) inject(round int) {
	s, rng := f.s, f.s.rng
	s.t.Helper()
	kind := kinds[round%4]
	if round >= 4 {
		kind = kinds[min(rng.IntN(len(kinds)), rng.IntN(len(kinds)))] // fewer faults of brokers, which start slowly
	}
	f.done[kind]++
	pause := func(atMost time.Duration) { // a random time that does not depend on the tasks
		time.Sleep(time.Duration(rng.Int64N(int64(atMost))))
	}
	x := s.instances[rng.IntN(len(s.instances))]
	b := s.three.Brokers[rng.IntN(3)]
	pause(2 * time.Second) // the duration of an epoch
	now := time.Now()
	switch kind {
	case "instance killed":
		x.kill()
		f.takeover = append(f.takeover, s.progress(now))
		x.start()
	case "instance killed and back at once":
		x.kill()
		x.start()
	case "all instances killed":
		for _, x := range s.instances {
			x.kill()
		}
		for _, x := range s.instances {
			x.start()
		}
	case "instance ended":
		x.end()
		f.handover = append(f.handover, s.progress(now))
		x.start()
	case "instance stopped beyond its session":
		x.signal(syscall.SIGSTOP)
		f.takeover = append(f.takeover, s.progress(now))
		pause(session)
		x.signal(syscall.SIGCONT)
	case "instance stopped for a moment":
		x.signal(syscall.SIGSTOP)
		pause(session)
		x.signal(syscall.SIGCONT)
	case "two instances stopped":
		y := s.instances[(x.number+1)%len(s.instances)]
		x.signal(syscall.SIGSTOP)
		pause(session)
		y.signal(syscall.SIGSTOP)
		pause(2 * session)
		x.signal(syscall.SIGCONT)
		pause(session)
		y.signal(syscall.SIGCONT)
	case "broker killed":
		b.Kill()
		pause(5 * time.Second)
		b.Start()
	case "two brokers killed":
		c := s.three.Brokers[(slices.Index(s.three.Brokers[:], b)+1)%3]
		b.Kill()
		c.Kill()
		pause(3 * time.Second)
		b.Start()
		c.Start()
	case "broker stopped":
		b.Pause()
		pause(8 * time.Second)
		b.Continue()
	case "broker and instance killed":
		b.Kill()
		x.kill()
		pause(3 * time.Second)
		b.Start()
		x.start()
	}
	s.t.Logf("%s: %s", time.Now().UTC().Format("15:04:05"), kind)
	s.progress(time.Now())
}

// report logs the injected faults and the times.
func (f *faults) report() {
	var words []string
	for _, kind := range kinds {
		if f.done[kind] > 0 {
			words = append(words, fmt.Sprintf("%s %d", kind, f.done[kind]))
		}
	}
	f.s.t.Log(strings.Join(words, ", "))
	for what, list := range map[string][]time.Duration{"an instance died": f.takeover,
		"an instance ended in order": f.handover} {
		if len(list) > 0 {
			f.s.t.Logf(
				"until all tasks published again after %s, with a session of %v: median %v, 99 %% %v, "+
					"longest %v, of %d",
				what, session, quantile(list, 0.5).Round(time.Millisecond),
				quantile(list, 0.99).Round(time.Millisecond), slices.Max(list).Round(time.Millisecond), len(list))
		}
	}
}
