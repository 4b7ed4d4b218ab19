package kafkatest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Three is an Apache Kafka of three brokers that .ci/kafka/three has started for the tests.
type Three struct {
	// Addrs are the addresses of all of them.
	Addrs []string
	// Brokers can be killed, paused and started one by one. Their node ids are 1 to 3.
	Brokers [3]*Real
}

// NewThree returns the brokers that STREAMDP_KAFKA_THREE names, and skips the test where there
// are none.
func NewThree(tb testing.TB) *Three {
	tb.Helper()
	addrs := os.Getenv("STREAMDP_KAFKA_THREE")
	if addrs == "" {
		tb.Skip("needs three brokers: .ci/kafka/three")
	}
	t := &Three{Addrs: strings.Split(addrs, ",")}
	for i := range t.Brokers {
		dir := filepath.Join(os.Getenv("STREAMDP_KAFKA_DIR"), strconv.Itoa(i+1))
		t.Brokers[i] = &Real{tb: tb, Addrs: t.Addrs[i : i+1], Data: filepath.Join(dir, "data"), dir: dir}
	}
	return t
}

// Pause stops the broker where it is, as a machine that stands still would. The test that calls
// it lets it continue, also when it fails.
func (r *Real) Pause() {
	r.tb.Helper()
	r.control("pause")
	r.tb.Cleanup(func() {
		if r.tb.Failed() {
			r.control("continue")
		}
	})
}

// Continue lets a paused broker go on.
func (r *Real) Continue() { r.tb.Helper(); r.control("continue") }
