package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/browser"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/page"
)

// pageStreams are a stream of moments and one of refits on the same topic.
var pageStreams = fixtures.OrdersStream + `
[stream.weights]
input  = { topic = "orders", codec = "json", columns = ["amount", "items", "weight"] }
output = { topic = "weights.dp" }
centre = [40.0, 3.0, 0.5]
scale  = [80.0, 5.0, 0.5]
[stream.weights.privacy]
epsilon = 1.0
delta = 1e-8
adjacency = "zero-out"
limit_epsilon = 3.0
[stream.weights.refit]
target = "weight"
clip_x = 2.0
clip_y = 2.0
window = 500
`

// TestPage opens the status page of a real daemon in a headless Chromium. The page shows what the API returns, requests
// nothing from other hosts, logs no errors, can be used by keyboard, breaks no rule of accessibility, and continues
// after a restart of the daemon.
func TestPage(t *testing.T) {
	t.Parallel()
	path := browser.Find()
	if path == "" {
		t.Skip("no Chromium: install one (Debian: chromium-headless-shell), or name it in STREAMDP_BROWSER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*fixtures.Patience) // a dozen waits
	defer cancel()
	r := streamtest.NewRig(t, pageStreams)
	r.Produce(0, 1000)
	r.Send([]byte("no row"))
	r.Produce(1000, 249)
	x := r.Start()
	x.Published(12)
	address := x.D.Addr()
	p := browser.Open(t, path)
	p.Size(1280, 900)
	p.Go("http://" + address + "/")
	shows := func(step int) string {
		return fmt.Sprintf(
			`document.querySelector("#s-orders-0 .chart .value")?.dataset.release === "orders/0/1/%d" && document.querySelector("#s-weights-0 .coef td[data-value]")`, step)
	}
	p.Until(ctx, "release 12", shows(12))

	pageAgrees(t, p, x)
	p.Until(ctx, "what was rejected",
		`document.querySelector("#s-orders-0 .notprivate").innerText.includes("1") && document.querySelector("#s-orders-0 .notprivate").innerText.includes("operator")`)
	var title string
	p.Eval("document.title", &title)
	if title != "streamdp: 2 running" {
		t.Errorf("the title is %q", title)
	}

	// By keyboard, go one release back.
	p.Eval(`document.querySelector("#s-orders-0 .chart svg").focus()`, nil)
	p.Key("ArrowLeft")
	p.Until(ctx, "the release before",
		`document.querySelector("#s-orders-0 .chart .value").dataset.release === "orders/0/1/11"`)
	p.Until(ctx, "it in words",
		`document.querySelector("#s-orders-0 .chart svg").getAttribute("aria-valuetext").startsWith("epoch 1, step 11: ")`)
	p.Eval(`document.activeElement.blur()`, nil)

	for _, scheme := range []string{"light", "dark"} {
		p.Prefers("prefers-color-scheme", scheme)
		for _, width := range []int{1280, 768, 360} {
			p.Size(width, 800)
			p.Eval(`new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))`, nil)
			var wide int
			if p.Eval("document.documentElement.scrollWidth", &wide); wide > width {
				t.Errorf("at %d pixels the page is %d wide", width, wide)
			}
			p.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = true })`, nil)
			for _, fault := range fixtures.Accessible(t, p) {
				t.Errorf("%s, %d pixels: %s", scheme, width, fault)
			}
			var cut []string
			if p.Eval(
				`[...document.querySelectorAll(".chart svg text")].filter((e) => e.getBBox().x < 0).map((e) => e.textContent)`, &cut); len(cut) > 0 {
				t.Errorf("%s, %d pixels: the text of axes is cut off: %s", scheme, width, cut)
			}
		}
	}
	for _, url := range p.Requests() {
		if !strings.HasPrefix(url, "http://"+address+"/") && !strings.HasPrefix(url, "data:") && url != "about:blank" {
			t.Errorf("the page asks for %s", url)
		}
	}
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}

	// Restart as a daemon that shows no exact counts.
	x.End()
	p.Until(ctx, "that nobody answers", `document.getElementById("live").innerText.startsWith("no answer since")`)
	r.Produce(1249, 101)
	x = r.Start(func(o *stream.Options) { o.Config.HTTP.Listen, o.Config.HTTP.Exposure = address, "public" })
	p.Until(ctx, "release 13",
		shows(13)+` && document.getElementById("live").innerText === "live" && !document.querySelector(".notprivate")`)
	p.Forget()
	p.Go("http://" + address + "/")
	p.Until(ctx, "what the earlier process published",
		shows(13)+` && document.querySelector("#s-orders-0 .chart svg").getAttribute("aria-valuemax") === "12"`)
	pageAgrees(t, p, x)
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}
	x.End()
}

// pageAgrees compares the page with the newest published releases.
func pageAgrees(t *testing.T, p *browser.Page, x *streamtest.Running) {
	t.Helper()
	newest := map[string]*core.Released{}
	for _, name := range []string{"orders", "weights"} {
		_, body := x.Get("/api/v1/streams/" + name + "/series?partition=0")
		var answer struct {
			Data struct{ Releases []*core.Released }
		}
		fixtures.Must(t, json.Unmarshal([]byte(body), &answer))
		newest[name] = answer.Data.Releases[len(answer.Data.Releases)-1]
		// The series have the numbers of the published bytes.
		for _, raw := range x.R.History(name + ".dp").ByKey {
			if r, err := core.ParseReleased([]byte(raw.Value)); err != nil {
				t.Error(err)
			} else if r.Step == newest[name].Step && fmt.Sprint(r.Values) != fmt.Sprint(newest[name].Values) {
				t.Errorf("the API says %v of release %d, published were %v", newest[name].Values, r.Step, r.Values)
			}
		}
	}
	value := func(r *core.Released, name string) core.ReleasedValue {
		i := slices.IndexFunc(r.Values, func(v core.ReleasedValue) bool { return v.Name == name })
		if i < 0 {
			t.Fatalf("%s has no %s", r.Stream, name)
		}
		return r.Values[i]
	}
	type shown struct {
		Value float64
		Text  string
	}
	var got []shown
	const list = `[...document.querySelectorAll(%q)].map((e) => ({Value: Number(e.dataset.value), Text: e.innerText}))`
	same := func(what string, want []float64) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: the page shows %v, the API says %v", what, got, want)
		}
		for i, g := range got {
			// The text is the value rounded to the last digit shown.
			text := strings.ReplaceAll(g.Text, "−", "-")
			read, err := strconv.ParseFloat(text, 64)
			mantissa, exponent, _ := strings.Cut(text, "e")
			_, decimals, _ := strings.Cut(mantissa, ".")
			power, _ := strconv.Atoi(exponent)
			if last := math.Pow10(power - len(decimals)); err != nil || g.Value != want[i] ||
				math.Abs(read-want[i]) > 0.5001*last {
				t.Errorf("%s %d: the page shows %v, the API says %v", what, i, g, want[i])
			}
		}
	}
	mean := value(newest["orders"], "mean_original")
	p.Eval(fmt.Sprintf(list, "#s-orders-0 .chart .value"), &got)
	same("mean", mean.Data)
	theta := append(slices.Clone(value(newest["weights"], "theta_original").Data),
		value(newest["weights"], "intercept_original").Data...)
	p.Eval(fmt.Sprintf(list, "#s-weights-0 .coef td[data-value]"), &got)
	same("coefficient", theta)
	cov := value(newest["orders"], "covariance_original").Data
	var correlation []float64
	at := func(i, j int) float64 { i, j = min(i, j), max(i, j); return cov[i*3-i*(i-1)/2+j-i] }
	for i := range 3 {
		for j := range 3 {
			correlation = append(correlation, at(i, j)/math.Sqrt(at(i, i)*at(j, j)))
		}
	}
	p.Eval(fmt.Sprintf(list, "#s-orders-0 .heat td[data-value]"), &got)
	for i := range got {
		if math.Abs(got[i].Value-correlation[i]) < 1e-12 {
			got[i].Value = correlation[i] // computed in another order
		}
	}
	same("correlation", correlation)
}

// TestPageCharts: a band covers exactly the releases that state an error, and shows the interval if a release states
// one. Axes include outlying points that need little room, and mark the points that they cut off. Shards with the same
// state share a line.
func TestPageCharts(t *testing.T) {
	t.Parallel()
	path := browser.Find()
	if path == "" {
		t.Skip("no Chromium: install one (Debian: chromium-headless-shell), or name it in STREAMDP_BROWSER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), fixtures.Patience)
	defer cancel()
	var releases []monitor.Point
	for i := range 40 {
		n := uint64(i + 1)
		coefficients := core.Floats{1.501, 0.1 * float64(i%2), 0.1 * float64(i%2)}
		switch i {
		case 1:
			coefficients[2] = -0.05 // needs little room
		case 19:
			coefficients[1] = 100
		}
		average := core.ReleasedValue{Name: "theta_average", Shape: []int{3}, Data: coefficients}
		values := []core.ReleasedValue{{Name: "theta", Shape: []int{3}, Data: coefficients, SE: core.Floats{0.02}}}
		if i < 15 || i >= 25 && i != 38 {
			average.SE = core.Floats{0.02, 0.001, 0.001}
			low, high := slices.Clone(coefficients), slices.Clone(coefficients)
			for j, se := range average.SE {
				low[j], high[j] = low[j]-3.05*se, high[j]+3.05*se
			}
			values = append(values, core.ReleasedValue{Name: "interval_low", Shape: []int{3}, Data: low},
				core.ReleasedValue{Name: "interval_high", Shape: []int{3}, Data: high})
		}
		end := int64(100 * n)
		releases = append(releases,
			monitor.Point{N: n,
				Released: &core.Released{Stream: "sales", Epoch: 1, Step: n, Rows: 100,
					Offsets: [2]int64{end - 100, end}, Covers: [2]int64{0, end},
					Columns: []string{"a", "b", "c", "y"}, Mechanism: "sgd", Target: "y", Level: 0.9,
					Values: append(values, average)}})
	}
	group := cluster.Status{Group: "shops",
		Members: []cluster.MemberStatus{{Instance: "one", Self: true, Shards: []int{}}}}
	for i := range 17 {
		s := cluster.ShardStatus{Shard: i, State: "halted", Why: "the key is another"}
		if i == 15 {
			s = cluster.ShardStatus{Shard: i, State: "leaving"}
		}
		group.Shards = append(group.Shards, s)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", page.ServeHTTP)
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		httpapi.Success(w, map[string]any{"version": "1", "started": time.Now(), "group": group,
			"tasks": []monitor.TaskStatus{
				{Stream: "sales", State: monitor.StateRunning, Mechanism: "sgd", Epoch: 1, Step: 40, Epsilon: 1,
					LimitEpsilon: 3}}})
	})
	mux.HandleFunc("GET /api/v1/streams/sales/series", func(w http.ResponseWriter, _ *http.Request) {
		httpapi.Success(w, map[string]any{"releases": releases})
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	p := browser.Open(t, path)
	p.Size(1280, 900)
	p.Go(server.URL)
	p.Until(ctx, "the newest release",
		`document.querySelector("#s-sales-0 .chart .value")?.dataset.release === "sales/0/1/40"`)

	is := func(what, expression string, want ...string) {
		t.Helper()
		var got []string
		if p.Eval(expression, &got); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	each := func(selector, of string) string {
		return fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => String(%s))`, selector, of)
	}
	const first, second, third = "#s-sales-0 .chart:nth-child(1)", "#s-sales-0 .chart:nth-child(2)",
		"#s-sales-0 .chart:nth-child(3)"
	legend := each("#s-sales-0 .key > span", "e.innerText")
	// the band of a single release has two edges
	is("releases in each band", each(first+" .band", `e.getAttribute("d").split("L").length / 2`), "15", "13", "2")
	is("the error", each(first+" .err", "e.innerText.trim()"), "± 0.061")
	is("the interval", each("#s-sales-0 .coef tbody tr:first-child td:nth-child(3)", "e.innerText"), "1.440 to 1.562")
	is("the axis fits the intervals", each(first+" svg text", "e.textContent")+".slice(0, 2)", "1.56", "1.44")
	is("the legend", legend, "released", "interval, 90 %", "▲▼ outside of the frame")
	is("what costs little is in the frame", each(third+" svg text", "e.textContent")+".slice(1, 2)", "−0.05")
	const marks = `e.querySelector(".cut")?.getAttribute("d").split("M").length - 1`
	is("marks", each("#s-sales-0 .chart", marks), "NaN", "1", "NaN")
	is("what shards say", each("#group .alert", "e.innerText"), "Shards 0–14, 16 are halted: the key is another.",
		"Shard 15 is leaving.")

	p.Eval(
		`{ const s = document.getElementById("s-sales-0-value"); s.value = "theta"; s.dispatchEvent(new Event("change")); }`, nil)
	is("the error without intervals", each(second+" .err", "e.innerText.trim()"), "± 0.039")
	is("the legend without intervals", legend, "released", "±1.96 standard errors", "▲▼ outside of the frame")
	is("bands without gaps", each(first+" .band", `e.getAttribute("d").split("L").length / 2`), "40")
	p.Eval(`document.querySelectorAll("details").forEach((d) => { d.open = true })`, nil)
	for _, fault := range fixtures.Accessible(t, p) {
		t.Error(fault)
	}
	if c := p.Complaints(); len(c) > 0 {
		t.Errorf("the page complains: %s", c)
	}
}

// TestPageHeaders: a browser gets the page, with a policy that allows requests only to the daemon; a program gets the
// list of paths; and an unchanged page is cached.
func TestPageHeaders(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	x := r.Start()
	x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	get := func(pairs ...string) *http.Response {
		req, err := http.NewRequest("GET", "http://"+x.D.Addr()+"/", nil)
		fixtures.Must(t, err)
		for i := 0; i < len(pairs); i += 2 {
			req.Header.Set(pairs[i], pairs[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		fixtures.Must(t, err)
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	res := get("Accept", "text/html,application/xhtml+xml")
	policy := res.Header.Get("Content-Security-Policy")
	if res.StatusCode != 200 || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") ||
		!strings.HasPrefix(policy, "default-src 'none'; script-src 'sha256-") || strings.Contains(policy, "unsafe") {
		t.Errorf("%s %v", res.Status, res.Header)
	}
	body := fixtures.ReadAll(t, res)
	if strings.Contains(body, "/*style*/") || strings.Contains(body, "/*script*/") || len(body) > 60_000 {
		t.Errorf("the page is not put together, or large: %d bytes", len(body))
	}
	if again := get("Accept", "text/html", "If-None-Match",
		res.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
		t.Errorf("the same page again: %s", again.Status)
	}
	if plain := get("Accept", "*/*"); !strings.HasPrefix(plain.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("a program gets %v", plain.Header)
	}
	x.End()
}

// TestStatusInWords: the page says what a stream computes and guarantees, how the budget was spent, and how many
// records retention may delete. It shows exact counts only to operators.
func TestStatusInWords(t *testing.T) {
	t.Parallel()
	for _, exposure := range []string{"operator", "public"} {
		r := streamtest.NewRig(t, pageStreams)
		r.Http = fmt.Sprintf("exposure = %q", exposure)
		r.Produce(0, 500)
		r.Send([]byte("no row"))
		x := r.Start()
		x.Published(5)
		x.Until("all is counted",
			func(s monitor.TaskStatus) bool { return s.NextOffset == 501 && len(x.D.Status()[1].Budget) == 2 })
		s := x.D.Status()[0]
		if s.Computes != "Means, second moments and covariances of amount, items and weight over all records of the "+
			"epoch so far: a release every 100 offsets." {
			t.Errorf("it computes %q", s.Computes)
		}
		if len(s.Guarantee) < 5 || !strings.Contains(s.Guarantee[0], "at most 13.6% of cases") ||
			!strings.Contains(s.Guarantee[1], "(1, 1e-08)-differentially private") {
			t.Errorf("it promises %q", s.Guarantee)
		}
		if s.Headroom == nil || *s.Headroom != 501 {
			t.Errorf("headroom %v", s.Headroom)
		}
		if len(s.Budget) != 2 || s.Budget[0].Kind != "open" || s.Budget[0].ChargedEpsilon != 1 ||
			s.Budget[1].ChargedEpsilon != s.ChargedEpsilon || s.Budget[1].LimitEpsilon != 3 {
			t.Errorf("budget %+v, charged %g", s.Budget, s.ChargedEpsilon)
		}
		total := uint64(0)
		if s.NotPrivate != nil {
			for _, n := range s.NotPrivate.Rejected {
				total += n
			}
		}
		if (exposure == "operator") != (total == 1) || (exposure == "public") != (s.NotPrivate == nil) {
			t.Errorf("%s: not private is %+v", exposure, s.NotPrivate)
		}
		_, body := x.Get("/api/v1/status")
		if strings.Contains(body, "not_private") != (exposure == "operator") ||
			!strings.Contains(body, `"exposure":"`+exposure+`"`) {
			t.Errorf("%s: the status is %s", exposure, body)
		}
		x.End()
	}
}

// TestSeriesRequests checks which releases an answer has, and which requests are invalid.
func TestSeriesRequests(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 500)
	x := r.Start()
	x.Published(5)
	x.Until("all are remembered", func(monitor.TaskStatus) bool { return len(x.In.Tasks()[0].Releases(100)) == 5 })
	steps := func(query string) (found []uint64) {
		code, body := x.Get("/api/v1/streams/orders/series" + query)
		var answer struct {
			Data struct {
				Started  time.Time
				Releases []struct{ N, Step uint64 }
			}
		}
		fixtures.Must(t, json.Unmarshal([]byte(body), &answer))
		if code != 200 || !answer.Data.Started.Equal(x.In.Process.Started) {
			t.Errorf("%s: %d %s", query, code, body)
		}
		for _, p := range answer.Data.Releases {
			found = append(found, p.Step)
		}
		return found
	}
	for query, want := range map[string][]uint64{
		"": {1, 2, 3, 4, 5}, "?partition=0": {1, 2, 3, 4, 5}, "?after=3": {4, 5}, "?after=5": nil,
	} {
		if got := steps(query); !slices.Equal(got, want) {
			t.Errorf("%s: steps %v, want %v", query, got, want)
		}
	}
	for query, want := range map[string]int{"?after=x": 400, "?after=-1": 400, "?partition=1": 404} {
		if code, body := x.Get("/api/v1/streams/orders/series" + query); code != want ||
			!strings.Contains(body, `"status":"error"`) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	x.End()
}
