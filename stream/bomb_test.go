package stream

import (
	"testing"

	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/race"
)

// TestBomb: a batch of 58 kB that decompresses to 1.8 GB is three records to a daemon, the
// middle one null, in the memory that it needs for others.
func TestBomb(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes several times the memory")
	}
	t.Parallel()
	bomb(t, []string{spawn(t, childSpec{Role: "broker", Topics: []string{"orders"}}).up().addr})
}

func bomb(t *testing.T, addrs []string) {
	r := newRigAt(t, nil, addrs[0], with(ordersStream, "step   = 100", "step   = 5"))
	r.commit = "20ms"
	r.produce(0, 1)
	kafkatest.Append(t, addrs, "orders", 0, kafkatest.Bomb(orderRecord(1), orderRecord(2), 1800<<20))
	r.produce(3, 6)
	p := spawn(t, childSpec{Role: "daemon", Config: string(r.text()), Seed: r.seed}).up()
	x := &remote{t, p}
	x.until(`streamdp_step{partition="0",stream="orders"} 2`)
	x.until(`streamdp_outbox_releases{partition="0",stream="orders"} 0`)
	x.until(`streamdp_diagnostic_records_rejected_total{partition="0",reason="too-large",stream="orders"} 1`)
	peak := highWater(t, p.cmd.Process.Pid)
	if code := p.terminate(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.stderr)
	}
	if got := len(r.records("orders.dp")); got != 2 {
		t.Errorf("%d releases", got)
	}
	t.Logf("the daemon's resident memory was at most %.1f MB", peak)
	if peak > 100 {
		t.Errorf("%.1f MB of resident memory", peak)
	}
}
