package stream

import (
	"strings"
	"testing"
)

func TestDaemonEndToEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.end()
	r.produce(1050, 1000)
	x = r.start()
	x.published(20)
	x.end()
	v := r.history("orders.dp")
	if len(v.bytes) != 20 {
		t.Fatalf("%d releases, want 20", len(v.bytes))
	}
	last := v.byKey["orders/0/1/20"].value
	if !strings.Contains(last, `"rows":100,"offsets":[1900,2000],"covers":[0,2000]`) {
		t.Errorf("release 20: %s", last)
	}
}
