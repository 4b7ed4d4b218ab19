package stream_test

import (
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/race"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
)

// TestBomb: a batch of 58 kB that decompresses to 1.8 GB gives three records, the middle one null, and needs no more
// memory than other batches.
func TestBomb(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes several times the memory")
	}
	t.Parallel()
	bomb(t, []string{streamtest.Spawn(t, streamtest.ChildSpec{Role: "broker", Topics: []string{"orders"}}).Up().Addr})
}

func bomb(t *testing.T, addrs []string) {
	r := streamtest.NewRigAt(t, nil, addrs[0], fixtures.With(fixtures.OrdersStream, "step   = 100", "step   = 5"))
	r.Commit = "20ms"
	r.Produce(0, 1)
	kafkatest.Append(t, addrs, "orders", 0, kafkatest.Bomb(fixtures.OrderRecord(1), fixtures.OrderRecord(2), 1800<<20))
	r.Produce(3, 6)
	p := streamtest.Spawn(t, streamtest.ChildSpec{Role: "daemon", Config: string(r.Text()), Seed: r.Seed}).Up()
	x := &remote{t, p}
	x.until(`streamdp_step{partition="0",stream="orders"} 2`)
	x.until(`streamdp_outbox_releases{partition="0",stream="orders"} 0`)
	x.until(`streamdp_diagnostic_records_rejected_total{partition="0",reason="too-large",stream="orders"} 1`)
	peak := resident(t, p.Cmd.Process.Pid, "VmHWM")
	if code := p.Terminate(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Stderr)
	}
	if got := len(r.Records("orders.dp")); got != 2 {
		t.Errorf("%d releases", got)
	}
	t.Logf("the daemon's resident memory was at most %.1f MB", peak)
	if peak > 100 {
		t.Errorf("%.1f MB of resident memory", peak)
	}
}
