package kafkatest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Three is an Apache Kafka cluster of three brokers that .ci/kafka/three has started for the tests.
type Three struct {
	// Addrs are the addresses of the three brokers.
	Addrs []string
	// Brokers can be killed, paused and started one by one. Their node ids are 1 to 3.
	Brokers [3]*Real
}

// NewThree returns the brokers that STREAMDP_KAFKA_THREE names. It skips the test if the variable is not set.
func NewThree(tb testing.TB) *Three {
	tb.Helper()
	addrs := os.Getenv("STREAMDP_KAFKA_THREE")
	if addrs == "" {
		tb.Skip("needs three brokers: run .ci/kafka/three")
	}
	t := &Three{Addrs: strings.Split(addrs, ",")}
	for i := range t.Brokers {
		dir := filepath.Join(os.Getenv("STREAMDP_KAFKA_DIR"), strconv.Itoa(i+1))
		t.Brokers[i] = &Real{tb: tb, Addrs: t.Addrs[i : i+1], Data: filepath.Join(dir, "data"), dir: dir}
	}
	return t
}

// Pause suspends the broker's process, so that the broker seems to hang. The process continues when the test ends, even
// if the test fails.
func (r *Real) Pause() {
	r.tb.Helper()
	r.control("pause")
	r.tb.Cleanup(func() {
		if r.tb.Failed() {
			r.control("continue")
		}
	})
}

// Continue resumes a paused broker.
func (r *Real) Continue() { r.tb.Helper(); r.control("continue") }
