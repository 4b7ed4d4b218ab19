package stream_test

import (
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/core"
)

// TestChargedOffsets: an epoch is charged for all offsets that its steps reach, even if their number exceeds 64 bits
// and would wrap around to a small one.
func TestChargedOffsets(t *testing.T) {
	t.Parallel()
	const all = -1
	regress := func(horizon string) string {
		return fixtures.With(
			fixtures.Regression("amb.clip = \"bisect\"\namb.batch = 22\namb.stat = 1024\namb.bands = 3"),
			"[stream.m.privacy]", "horizon = "+horizon+"\n[stream.m.privacy]")
	}
	window := func(horizon, keys string) string {
		return fixtures.With(fixtures.RefitOf(keys), "[stream.m.privacy]", "horizon = "+horizon+"\n[stream.m.privacy]")
	}
	adapt := func(horizon string) string {
		return fixtures.With(fixtures.OnlineNewton(""), "[stream.m.privacy]",
			"horizon = "+horizon+"\n[stream.m.privacy]")
	}
	step := func(horizon string) string {
		return fixtures.With(fixtures.MachineStream, "step   = 7", "step = 100\nhorizon = "+horizon) +
			"workload = \"sum\"\nfactorization = \"identity\"\n"
	}
	for _, c := range []struct {
		toml string
		base int64
		end  int64
	}{
		{step("40"), 5, 4005},
		{step("0"), 5, all},
		{window("3", "window = 20\nstride = 50"), 7, 7 + 120},
		{window("1048576", "window = 20\nstride = 1099511627776"), 7, 7 + 20 + (1<<20-1)<<40},
		{window("1048577", "window = 20\nstride = 17592186044416"), 7, all}, // 2²⁰·2⁴⁴ + 20
		{regress("4"), 0, 2 * (1024 + 22)},
		{regress("35271021173440828"), 0, all}, // (1024 + 22)·h/2 = 2⁶⁴ + 1428
		// If the slots of a step depend on releases, the charge covers the largest possible number of slots. For a
		// search, that is sixteen times its 64.
		{adapt("50"), 1000, 1000 + 50*1024},
		{adapt("9007199254740991"), 0, (1<<53 - 1) * 1024},
		{adapt("9007199254740992"), 0, all},
		{adapt("18014398509481984"), 0, all}, // 2⁶⁴
	} {
		cfg, err := config.Parse("m.toml",
			[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+c.toml))
		fixtures.Must(t, err)
		s := cfg.Streams[0]
		mech, err := core.NewMechanism(s, nil, nil)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if end := core.ChargedTo(mech, s.LastStep(), c.base); end != c.end {
			t.Errorf("%s with horizon %d: offsets %d to %d, want to %d", s.Mechanism(), s.Horizon, c.base, end, c.end)
		}
	}
}
