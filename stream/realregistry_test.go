package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/cases"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/twmb/franz-go/pkg/sr"
)

// schemaHowTo returns the first configuration of the how-to about schemas, with words replaced.
func schemaHowTo(t *testing.T, replace ...string) *config.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cases.Root(t), "docs", "howto", "schema-registry.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```toml\n")
	block, _, _ := strings.Cut(rest, "```")
	dir := fixtures.ShortDir(t)
	block += fmt.Sprintf(
		"[state]\ndir = %q\nkey_file = %q\ncommit_interval = \"10ms\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
		filepath.Join(dir, "state"), filepath.Join(dir, "key"))
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(block, replace[i]) {
			t.Fatalf("nothing to replace: %s", replace[i])
		}
		block = strings.Replace(block, replace[i], replace[i+1], 1)
	}
	c, err := config.Parse("schema-registry.md", []byte(block))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRealRegistry: records of ordinary producers in Java and Python, with a real registry, give the intended rows in
// all formats, and a daemon releases them. It needs .ci/registry/run.
func TestRealRegistry(t *testing.T) {
	url := os.Getenv("STREAMDP_REGISTRY_URL")
	if url == "" {
		t.Skip("STREAMDP_REGISTRY_URL is not set: .ci/registry/run sets it")
	}
	addrs := kafkatest.NewReal(t).Addrs
	ci := filepath.Join(cases.Root(t), ".ci", "registry")
	const n = 200
	produce := func(t *testing.T, language, format, topic string) {
		t.Helper()
		schema := filepath.Join(ci,
			map[string]string{"avro": "order.avsc", "plain": "order.avsc", "protobuf": "order.proto",
				"json": "order.json"}[format])
		var cmd *exec.Cmd
		if language == "java" {
			cmd = exec.Command("java", "-Xmx256m", "-cp", os.Getenv("PRODUCER_JARS")+"/*",
				filepath.Join(ci, "Producer.java"),
				format, addrs[0], url, os.Getenv("STREAMDP_REGISTRY_OWN"), topic, strconv.Itoa(n), schema)
		} else {
			cmd = exec.Command(os.Getenv("PRODUCER_PYTHON"), filepath.Join(ci, "producer.py"), format, addrs[0], url,
				topic, strconv.Itoa(n), schema)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	// rows checks every row of a topic.
	rows := func(t *testing.T, c *config.Config, topic string) {
		t.Helper()
		x, err := connect.OpenSchemas(c)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		if err := x.Look(t.Context(), c.Streams[0], 0); err != nil {
			t.Fatal(err)
		}
		f, err := x.Format(c.Streams[0])
		if err != nil {
			t.Fatal(err)
		}
		d, err := codec.NewDecoder(f, 1)
		if err != nil {
			t.Fatal(err)
		}
		var b codec.Batch
		for _, r := range kafkatest.ReadCommitted(t, addrs, topic, 0, 0, n-1) {
			b.Records = append(b.Records, kafka.Record{Key: r.Key, Value: r.Value})
		}
		d.Decode(&b)
		for i := range n {
			want := []float64{0.25 * float64(i), float64(i % 7), 0, 0.5 + float64(i)}
			if i%3 == 0 {
				want[2] = 1
			}
			if i%5 == 0 {
				want[3] = 0
			}
			if b.Reasons[i] != codec.Decoded || !slices.Equal(b.Row(i), want) {
				t.Fatalf("record %d gives %v (%v), want %v", i, b.Row(i), b.Reasons[i], want)
			}
		}
	}
	for _, language := range []string{"java", "python"} {
		for format, name := range map[string]string{"avro": "avro", "protobuf": "protobuf", "json": "json-schema"} {
			t.Run(language+"/"+format, func(t *testing.T) {
				topic := kafkatest.Topic(t, addrs, nil)
				produce(t, language, format, topic)
				c := schemaHowTo(t, "localhost:9092", addrs[0], "http://localhost:8081", url, `topic = "orders"`,
					fmt.Sprintf("topic = %q", topic),
					`codec = "avro"`, fmt.Sprintf("codec = %q", name), `"orders.dp"`, strconv.Quote(topic+".dp"))
				if warnings, err := connect.CheckSchemas(t.Context(), c, true); err != nil || len(warnings) != 0 {
					t.Fatalf("check: %q, %v", warnings, err)
				}
				rows(t, c, topic)

				log, seed := &fixtures.Journal{}, uint64(1)
				d, err := stream.New(
					stream.Options{Config: c, Key: connect.InsecureKey(seed), InsecureSeed: &seed, Version: "test",
						Hooks: stream.Hooks{LookEvery: 100 * time.Millisecond},
						Log:   slog.New(slog.NewTextHandler(log, nil))})
				if err != nil {
					t.Fatal(err)
				}
				r := &streamtest.SiteRun{T: t, D: d, Done: make(chan struct{})}
				ctx, stop := context.WithCancel(context.Background())
				r.Stop = stop
				go func() { defer close(r.Done); r.Err = d.Run(ctx); d.Close() }()
				t.Cleanup(func() { stop(); <-r.Done })
				r.Published(n / 100)
				s := d.Status()[0]
				if len(s.Schemas) != 1 || s.Schemas[0].Subject != topic+"-value" || len(s.Schemas[0].Faults) != 0 {
					t.Fatalf("schemas in the status: %+v", s.Schemas)
				}
				count := fmt.Sprintf(
					"streamdp_diagnostic_schema_records_total"+
						`{partition="0",reason="decoded",schema="%d",stream="orders"} %d`, s.Schemas[0].ID, n)
				if !strings.Contains(metricsOf(d), count) {
					t.Errorf("metrics lack %s", count)
				}
				if format == "avro" {
					client, err := sr.NewClient(sr.URLs(url))
					if err != nil {
						t.Fatal(err)
					}
					if _, err := client.RegisterSchema(t.Context(), topic+"-value",
						fixtures.AvroOrder("amount double", "items string"), -1, -1); err != nil {
						t.Fatal(err)
					}
					r.Wait("a new version that does not fit", func(s monitor.TaskStatus) bool {
						return len(s.Schemas) == 1 && s.Schemas[0].Version == 2 && len(s.Schemas[0].Faults) > 1
					})
					if !strings.Contains(log.String(), "records with this schema of the registry give no rows") {
						t.Error("the log does not warn of a new version that does not fit")
					}
				}
				r.End()
			})
		}
	}
	t.Run("plain", func(t *testing.T) {
		topic := kafkatest.Topic(t, addrs, nil)
		produce(t, "python", "plain", topic)
		c := schemaHowTo(t, "localhost:9092", addrs[0], `topic = "orders", codec = "avro"`,
			fmt.Sprintf("topic = %q, codec = \"avro\", framing = \"plain\", schema_file = %q", topic,
				filepath.Join(ci, "order.avsc")))
		if warnings, err := connect.CheckSchemas(t.Context(), c, false); err != nil || len(warnings) != 0 {
			t.Fatalf("check: %q, %v", warnings, err)
		}
		rows(t, c, topic)
	})
}
