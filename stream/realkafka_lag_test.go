package stream_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
)

// TestRealKafkaLag: kafka-consumer-groups, from the broker's jars, shows the daemon's lag. While the daemon runs, the
// lag is the records of the open step. While it does not run, the lag includes the records written since then.
func TestRealKafkaLag(t *testing.T) {
	b := kafkatest.NewReal(t)
	jars := os.Getenv("JARS")
	if found, _ := filepath.Glob(filepath.Join(jars, "kafka-tools-[0-9]*.jar")); jars == "" || len(found) == 0 {
		t.Skip("needs the jar kafka-tools: .ci/kafka/run has it")
	}
	s := streamtest.NewSite(t, b.Addrs, kafkatest.Topic(t, b.Addrs, nil))
	group := "lag-" + s.In
	s.Edit = strings.NewReplacer("[state]", fmt.Sprintf("group = %q\n[state]", group))
	send := func(n int) {
		t.Helper()
		list := make([]kafka.Message, n)
		for i := range list {
			list[i] = kafka.Message{Value: fixtures.OrderRecord(i), Time: time.UnixMilli(1)}
		}
		if _, err := s.Client.Produce(t.Context(), s.In, 0, list); err != nil {
			t.Fatal(err)
		}
	}
	// shown waits until the tool shows offset, end and lag.
	shown := func(want ...string) {
		t.Helper()
		var out []byte
		for late := time.Now().Add(time.Minute); time.Now().Before(late); {
			var err error
			out, err = exec.Command("java", "-cp", filepath.Join(jars, "*"),
				"org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
				"--bootstrap-server", b.Addrs[0], "--describe", "--group", group).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				// GROUP TOPIC PARTITION CURRENT-OFFSET LOG-END-OFFSET LAG …
				if f := strings.Fields(line); len(f) > 5 && f[0] == group && f[1] == s.In &&
					strings.Join(f[2:6], " ") == strings.Join(want, " ") {
					return
				}
			}
		}
		t.Fatalf("kafka-consumer-groups does not show %v:\n%s", want, out)
	}
	send(730)
	d := s.Run()
	d.Published(7)
	shown("0", "700", "730", "30") // with a daemon's usual period
	d.End()
	send(500)
	shown("0", "700", "1230", "530")
	d = s.Run()
	d.Published(12)
	d.End() // commits the offsets at its end
	shown("0", "1200", "1230", "30")
}
