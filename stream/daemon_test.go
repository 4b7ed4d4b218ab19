package stream_test

import (
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
)

func TestDaemonEndToEnd(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.End()
	r.Produce(1050, 1000)
	x = r.Start()
	x.Published(20)
	x.End()
	v := r.History("orders.dp")
	if len(v.Bytes) != 20 {
		t.Fatalf("%d releases, want 20", len(v.Bytes))
	}
	last := v.ByKey["orders/0/1/20"].Value
	if !strings.Contains(last, `"rows":100,"offsets":[1900,2000],"covers":[0,2000]`) {
		t.Errorf("release 20: %s", last)
	}
}
