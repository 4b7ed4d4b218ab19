package stream_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

// metricsOf returns what a daemon shows at /metrics.
func metricsOf(d *stream.Daemon) string {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Host = "127.0.0.1"
	(*d.Server()).Handler().ServeHTTP(w, r)
	return w.Body.String()
}

// TestSchemas: a task waits for the registry before its epoch is charged. Each record is decoded by its own schema. A
// record without a schema, or with a schema that lacks the stream's columns, is null and does not affect others. A new
// version that does not fit causes one warning. Without the registry, a running task continues.
func TestSchemas(t *testing.T) {
	broker, err := embedded.Start(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	var down atomic.Bool
	reg := srfake.New()
	t.Cleanup(reg.Close)
	reg.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return down.Load()
	})
	in := kafkatest.Topic(t, broker.Addrs(), nil)
	s := streamtest.NewSite(t, broker.Addrs(), in)
	s.Log, s.Look = &fixtures.Journal{}, 20*time.Millisecond
	s.Edit = strings.NewReplacer(`codec = "json"`, `codec = "avro"`, "[stream.orders]",
		fmt.Sprintf("[registry]\nurls = [%q]\n[stream.orders]", reg.URL()))
	d := s.Run()
	d.Wait("a missing subject", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRetrying &&
			strings.Contains(s.Message, "registry: subject "+in+"-value: is not in the registry")
	})
	if len(d.D.Epochs()) != 0 {
		t.Error("an epoch was charged before the schemas were known")
	}
	reg.SeedSchema(in+"-value", 1, 10, fixtures.AvroOrder("amount double", "items double"))
	d.Wait("no schema that gives rows", func(s monitor.TaskStatus) bool {
		return s.State == monitor.StateRetrying &&
			strings.Contains(s.Message, "version 1 (id 10): weight: the schema has no such path")
	})
	if len(d.D.Epochs()) != 0 {
		t.Error("an epoch was charged before a schema could give rows")
	}
	reg.SeedSchema(in+"-value", 2, 11, fixtures.AvroOrder("amount double", "items double", "weight double"))
	d.Wait("running", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	reg.SeedSchema(in+"-value", 3, 12,
		fixtures.AvroOrder("tip double", "amount double", "items double", "weight double"))
	reg.SeedSchema(in+"-value", 4, 13, fixtures.AvroOrder("amount double", "items double"))
	reg.SeedSchema(in+"-value", 5, 14, fixtures.AvroOrder("amount double", "items string", "weight double"))
	reg.SeedSchema("elsewhere", 1, 15,
		fixtures.AvroOrder("amount double", "items double", "weight double", "rest double"))
	var batch []kafkatest.Record
	for range 10 {
		batch = append(batch, fixtures.Framed(11, 40, 3, 1.2), fixtures.Framed(12, 9, 40, 3, 1.2),
			fixtures.Framed(13, 40, 3), fixtures.Framed(14, 40),
			fixtures.Framed(15, 40, 3, 1.2, 0), fixtures.Framed(4711, 40, 3, 1.2),
			kafkatest.Record{Value: []byte(`{"amount":1}`)}, fixtures.Framed(11, 40, 3),
			fixtures.Framed(12, 9, 40, 3, 1.2), fixtures.Framed(11, 40, math.NaN(), 1.2))
	}
	producer := kafkatest.NewProducer(t, broker.Addrs(), in, 0, "")
	producer.Send(batch...)
	d.Published(1)
	for _, want := range []string{
		`{partition="0",reason="decoded",schema="11",stream="orders"} 10`,
		`{partition="0",reason="malformed",schema="11",stream="orders"} 10`,
		`{partition="0",reason="not-finite",schema="11",stream="orders"} 10`,
		`{partition="0",reason="decoded",schema="12",stream="orders"} 20`,
		`{partition="0",reason="no-column",schema="13",stream="orders"} 10`,
		`{partition="0",reason="wrong-type",schema="14",stream="orders"} 10`,
		`{partition="0",reason="no-schema",schema="unknown",stream="orders"} 30`,
	} {
		if text := metricsOf(d.D); !strings.Contains(text, "streamdp_diagnostic_schema_records_total"+want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	d.Wait("a look", func(s monitor.TaskStatus) bool { return len(s.Schemas) == 1 && s.Schemas[0].Version == 5 })
	if got := d.D.Status()[0].Schemas[0]; got.ID != 14 || len(got.Faults) != 1 ||
		!strings.Contains(got.Faults[0], "items") {
		t.Errorf("the newest schema is shown as %+v", got)
	}
	if text := metricsOf(d.D); !strings.Contains(text, `streamdp_schema_faults{partition="0",stream="orders"} 1`) ||
		!strings.Contains(text, "\nstreamdp_registry_reachable 1\n") {
		t.Error("the metrics do not show the newest schema")
	}
	down.Store(true)
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(metricsOf(d.D),
		"\nstreamdp_registry_reachable 0\n"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("an outage of the registry is not shown")
		}
	}
	for i := range batch {
		batch[i] = fixtures.Framed(11, 40, 3, 1.2)
	}
	producer.Send(batch...)
	d.Published(2)
	if d.Ready() != http.StatusOK {
		t.Error("not ready without the registry")
	}
	down.Store(false)
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(metricsOf(d.D),
		"\nstreamdp_registry_reachable 1\n"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the metrics do not show that the registry is back")
		}
	}
	d.End()
	logged := s.Log.String()
	for of, n := range map[string]int{
		"records with this schema of the registry give no rows": 3, "version=1 id=10": 1, "version=4 id=13": 1,
		"version=5 id=14":                     1,
		"the schema registry does not answer": 1, "answers 503": 1, "the schema registry answers again": 1,
		"4711": 0, "id=15": 0,
	} {
		if got := strings.Count(logged, of); got != n {
			t.Errorf("%q is logged %d times, want %d", of, got, n)
		}
	}

	// Another state directory gives the same bytes, and public metrics reveal nothing of records.
	again := streamtest.NewSite(t, broker.Addrs(), in)
	again.Look = s.Look
	again.Edit = strings.NewReplacer(`codec = "json"`, `codec = "avro"`, "[stream.orders]",
		fmt.Sprintf("[registry]\nurls = [%q]\n[stream.orders]", reg.URL()), "[http]", "[http]\nexposure = \"public\"")
	d = again.Run()
	d.Published(2)
	if text := metricsOf(d.D); strings.Contains(text, "diagnostic_schema") ||
		!strings.Contains(text, "streamdp_schema_faults") {
		t.Error("public metrics have counts of records, or lack public series")
	}
	d.End()
	first, second := s.Output(), again.Output()
	for key, p := range first {
		if !p.Equal(second[key]) {
			t.Errorf("release %s differs the second time", key)
		}
	}
	if len(first) != 2 || len(second) != 2 {
		t.Errorf("%d and %d releases", len(first), len(second))
	}
}

// TestCheckSchemas: a fault of the newest schema is an error, and one of an older schema only a warning. A schema file
// is compared without the registry.
func TestCheckSchemas(t *testing.T) {
	reg := srfake.New()
	defer reg.Close()
	file := filepath.Join(t.TempDir(), "order.avsc")
	if err := os.WriteFile(file, []byte(fixtures.AvroOrder("amount double", "weight double").Schema),
		0o600); err != nil {
		t.Fatal(err)
	}
	check := func(co bool, input string) ([]string, error) {
		t.Helper()
		text := fmt.Sprintf(
			"[kafka]\nbrokers = [\"localhost:9092\"]\n[state]\ndir = \"s\"\nkey_file = \"k\"\n[registry]\n"+
				"urls = [%q]\n[stream.orders]\ninput = { topic = \"orders\", columns = [\"amount\", \"items\"], %s }\n"+
				"[stream.orders.privacy]\nepsilon = 1.0\ndelta = 1e-8\nadjacency = \"zero-out\"\n"+
				"[stream.orders.moments]\nclip = 1.0\n", reg.URL(), input)
		c, err := config.Parse("test.toml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return connect.CheckSchemas(t.Context(), c, co)
	}
	const avro = `codec = "avro"`
	plain := fmt.Sprintf(`codec = "avro", framing = "plain", schema_file = %q`, file)
	if _, err := check(false, plain); err == nil || !strings.Contains(err.Error(), "stream orders: "+file+": items: ") {
		t.Errorf("a schema file without a column: %v", err)
	}
	if warnings, err := check(false, avro); err != nil || warnings != nil {
		t.Errorf("without the registry: %q, %v", warnings, err)
	}
	if warnings, err := check(true, avro); err != nil || len(warnings) != 1 ||
		!strings.Contains(warnings[0],
			"subject orders-value: is not in the registry yet: run waits until a producer registers it; or "+
				"correct input.subjects") {
		t.Errorf("a missing subject: %q, %v", warnings, err)
	}
	reg.SeedSchema("orders-value", 1, 1, fixtures.AvroOrder("amount bytes", "items bytes"))
	const first = "stream orders: subject orders-value, version 1 (id 1): "
	if _, err := check(true, avro); err == nil || !strings.Contains(err.Error(), first+"amount: ") ||
		!strings.Contains(err.Error(), "\n"+first+"items: ") {
		t.Errorf("a column of another type: %v", err)
	}
	reg.SeedSchema("orders-value", 2, 2, fixtures.AvroOrder("amount double", "items double"))
	warnings, err := check(true, avro)
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[1], "version 1 (id 1): items") ||
		!strings.Contains(warnings[0], "its records give no rows") {
		t.Errorf("an older version: %q, %v", warnings, err)
	}
	if _, err := check(true, `codec = "protobuf"`); err == nil || !strings.Contains(err.Error(), "version 2 (id 2)") {
		t.Errorf("a schema of another format: %v", err)
	}
	reg.Close()
	if _, err := check(true, avro); err == nil || !strings.Contains(err.Error(), "registry "+reg.URL()) {
		t.Errorf("a registry that is away: %v", err)
	}
}
