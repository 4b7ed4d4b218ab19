package kafkatest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Real is an Apache Kafka that .ci/kafka/run has started for the tests.
type Real struct {
	tb    testing.TB
	Addrs []string
	// Data is the folder of the broker's logs, one folder a partition.
	Data string
	dir  string
}

// NewReal returns the broker that STREAMDP_KAFKA_BROKERS names, and skips the
// test where there is none.
func NewReal(tb testing.TB) *Real {
	tb.Helper()
	addrs := os.Getenv("STREAMDP_KAFKA_BROKERS")
	if addrs == "" {
		tb.Skip("needs a real Kafka: make test-kafka")
	}
	dir := os.Getenv("STREAMDP_KAFKA_DIR")
	return &Real{tb: tb, Addrs: strings.Split(addrs, ","), Data: filepath.Join(dir, "data"), dir: dir}
}

// Kill ends the broker as a crash would. The test that calls it leaves it
// running again, also when it fails.
func (r *Real) Kill() {
	r.tb.Helper()
	if os.Getenv("STREAMDP_KAFKA_CONTROL") == "" {
		r.tb.Skip("this broker is not the test's to kill: make test-kafka starts one that is")
	}
	r.control("kill")
	r.tb.Cleanup(func() {
		if r.tb.Failed() {
			r.control("kill")
			r.control("start")
		}
	})
}

// Start starts the killed broker with its data, and returns when it serves.
func (r *Real) Start() { r.tb.Helper(); r.control("start") }

func (r *Real) control(what string) {
	r.tb.Helper()
	if out, err := exec.Command(os.Getenv("STREAMDP_KAFKA_CONTROL"), what, r.dir).CombinedOutput(); err != nil {
		r.tb.Fatalf("%s the broker: %v\n%s", what, err, out)
	}
}

// Topic creates a topic of one partition under a name that nothing else uses.
// Records stay in it however old their time says they are, unless config wants
// it otherwise.
func Topic(tb testing.TB, addrs []string, config map[string]string) string {
	tb.Helper()
	name := fmt.Sprintf("%s-%d", strings.NewReplacer("/", "-", " ", "-").Replace(tb.Name()), time.Now().UnixNano())
	all := map[string]string{"retention.ms": "-1"}
	maps.Copy(all, config)
	CreateTopic(tb, addrs, name, all)
	return name
}
