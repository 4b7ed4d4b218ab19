package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/stream/dryrun"
	"github.com/streamdp/streamdp/stream/monitor"
)

// deployed reads a file of deploy/.
func deployed(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// dashboardQueries returns the queries of the dashboard, with its variables set to every stream and job.
func dashboardQueries(t *testing.T) (queries []string) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(deployed(t, "grafana/streamdp.json")), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			queries = append(queries,
				strings.NewReplacer("$stream", ".*", "$job", ".*", "$__rate_interval", "1m").Replace(q.Expr))
		}
	}
	if len(queries) < 20 {
		t.Fatalf("the dashboard has %d queries", len(queries))
	}
	return queries
}

// TestDeployedMetrics: dashboard and alerts use only existing metrics.
func TestDeployedMetrics(t *testing.T) {
	reference := string(monitor.MetricsReference())
	text := deployed(t, "prometheus/rules.yml") + strings.Join(dashboardQueries(t), "\n")
	names := regexp.MustCompile(`\bstreamdp_[a-z_]+`).FindAllString(text, -1)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !strings.Contains(reference,
			"- `"+strings.TrimSuffix(strings.TrimPrefix(name, "streamdp_"), "_bucket")+"` (") {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// TestKubernetesConfiguration: the daemon accepts the configuration in the manifest.
func TestKubernetesConfiguration(t *testing.T) {
	_, text, ok := strings.Cut(deployed(t, "kubernetes/streamdp.yaml"), "  streamdp.toml: |\n")
	if !ok {
		t.Fatal("the manifest has no configuration")
	}
	text, _, _ = strings.Cut(text, "---\n")
	c, err := config.Parse("streamdp.toml", []byte(strings.ReplaceAll(text, "\n    ", "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dryrun.Describe(c.Streams[0]); err != nil {
		t.Error(err)
	}
	if c.HTTP.Listen != ":9464" || !c.State.KeyGroupReadable || c.State.KeyFile != "/etc/streamdp-key/key" {
		t.Errorf("%+v %+v", c.HTTP, c.State)
	}
}

// TestPrometheus: a real Prometheus scrapes a real daemon, answers every query of the dashboard, and fires the alerts
// for a spent budget, rejected records and a halted task. The alerts have no waiting time here. With STREAMDP_SLOW=1
// the test also covers the alert for a lag above the headroom.
func TestPrometheus(t *testing.T) {
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus on the path (Debian: prometheus)")
	}
	s := newSite(t)
	s.feed(25)
	d := s.start()
	d.until("two steps", released(2))

	dir := t.TempDir()
	rules := regexp.MustCompile(`(?m)^ *for: .*\n`).ReplaceAllString(deployed(t, "prometheus/rules.yml"), "")
	target, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"rules.yml": rules,
		"prometheus.yml": fmt.Sprintf(
			"global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [rules.yml]\nscrape_configs:\n"+
				"- job_name: streamdp\n  static_configs: [{targets: [%q]}]\n",
			target.Host),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var log bytes.Buffer
	c := exec.CommandContext(ctx, path, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		c.Process.Kill()
		c.Wait()
		if t.Failed() {
			t.Logf("%.3000s", log.String())
		}
	}()

	// ask returns the number of series that answer a query.
	ask := func(query string) int {
		res, err := http.Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(query))
		if err != nil {
			return 0 // Prometheus does not answer yet
		}
		defer res.Body.Close()
		var answer struct {
			Status, Error string
			Data          struct{ Result []json.RawMessage }
		}
		if err := json.NewDecoder(res.Body).Decode(&answer); err == nil && answer.Error != "" {
			t.Fatalf("%s: %s", query, answer.Error)
		}
		return len(answer.Data.Result)
	}
	until := func(query string) {
		t.Helper()
		for ask(query) == 0 {
			select {
			case <-ctx.Done():
				t.Fatalf("nothing answers %s", query)
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	until(`count_over_time(streamdp_records_read_total[1m]) >= 2`)
	client, err := kafka.NewClient(kafka.Options{Brokers: []string{s.broker.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var bad []kafka.Message
	for range 15 {
		bad = append(bad, kafka.Message{Value: []byte("no row"), Time: time.UnixMilli(1)})
	}
	if _, err := client.Produce(ctx, "orders", 0, bad); err != nil {
		t.Fatal(err)
	}
	until(`ALERTS{alertname="StreamdpRecordsRejected",alertstate="firing",stream="orders"}`)
	until(`ALERTS{alertname="StreamdpBudgetNearLimit",alertstate="firing",stream="orders"}`)
	ofGroup := regexp.MustCompile(`streamdp_(group|shards?|takeover|state)_`)
	for _, query := range dashboardQueries(t) {
		if ofGroup.MatchString(query) {
			ask(query) // this daemon is in no group, so there is no answer; but the query must be valid
			continue
		}
		until(query)
	}
	for _, alert := range []string{"StreamdpTaskHalted", "StreamdpLagAboveHeadroom", "StreamdpInsecureNoise",
		"StreamdpDown"} {
		if ask(fmt.Sprintf(`ALERTS{alertname=%q}`, alert)) > 0 {
			t.Errorf("%s fires without a reason", alert)
		}
	}

	// Another producer's record among the releases halts the task.
	if _, err := client.Produce(ctx, "orders.dp", 0,
		[]kafka.Message{{Key: []byte("orders/0/1/99"), Value: []byte("{}"), Time: time.UnixMilli(1)}}); err != nil {
		t.Fatal(err)
	}
	s.feed(10) // so that there is a release to publish
	until(`ALERTS{alertname="StreamdpTaskHalted",alertstate="firing",stream="orders"}`)
	if os.Getenv("STREAMDP_SLOW") != "" { // a halted task checks its lag twice a minute
		s.feed(100) // more than the retention headroom
		until(`ALERTS{alertname="StreamdpLagAboveHeadroom",alertstate="firing",stream="orders"}`)
	}
}
