package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/httpapi"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/state"
	"github.com/streamdp/streamdp/stream/task"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t, fixtures.OrdersStream)
	r.Produce(0, 1050)
	x := r.Start()
	x.Published(10)
	x.Until("the last is remembered", func(monitor.TaskStatus) bool { return len(x.In.Tasks()[0].Releases(100)) == 10 })

	check := func(method, path string, code int, contentType string, words ...string) string {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+x.D.Addr()+path, nil)
		fixtures.Must(t, err)
		res, err := http.DefaultClient.Do(req)
		fixtures.Must(t, err)
		defer res.Body.Close()
		body := fixtures.ReadAll(t, res)
		if res.StatusCode != code || !strings.HasPrefix(res.Header.Get("Content-Type"), contentType) {
			t.Errorf("%s %s: %s, %s", method, path, res.Status, res.Header.Get("Content-Type"))
		}
		for _, w := range words {
			if !strings.Contains(body, w) {
				t.Errorf("%s lacks %q:\n%s", path, w, body)
			}
		}
		return body
	}
	check("GET", "/", 200, "text/plain", "/metrics", "/-/ready", "/api/v1/status", "/api/v1/schema/release.json")
	check("GET", "/-/healthy", 200, "text/plain", "healthy")
	check("GET", "/-/ready", 200, "text/plain", "ready")
	check("GET", "/metrics", 200, "text/plain", `streamdp_step{partition="0",stream="orders"} 10`, "go_goroutines",
		"process_resident_memory_bytes")
	check("GET", "/api/v1/status", 200, "application/json", `"status":"success"`, `"state":"running"`, `"step":10`,
		`"next_offset":1050`, `"version":"test"`, `"last_commit"`, `"last_release"`)
	check("GET", "/api/v1/streams", 200, "application/json", `"data":["orders"]`)
	check("GET", "/api/v1/streams/orders", 200, "application/json", `"epoch":1`)
	check("GET", "/api/v1/streams/orders?partition=0", 200, "application/json", `"epoch":1`)
	check("GET", "/api/v1/streams/orders?partition=1", 404, "application/json", `"status":"error"`)
	check("GET", "/api/v1/streams/nobody", 404, "application/json", `"status":"error"`)
	check("GET", "/api/v1/streams/nobody/releases", 404, "application/json", `"status":"error"`)
	if got := check("GET", "/api/v1/schema/release.json", 200,
		"application/schema+json"); got != string(fixtures.ReleaseSchema(t)) {
		t.Error("the schema served is not the file")
	}
	check("GET", "/nothing", 404, "text/plain")
	check("POST", "/api/v1/status", 405, "text/plain")
	for _, path := range []string{"/epoch/open", "/epoch/close"} {
		check("POST", path, 404, "text/plain") // only on the control socket
	}
	for _, path := range []string{"/debug/pprof/", "/debug/vars"} {
		check("GET", path, 404, "text/plain")
	}
	for _, limit := range []string{"0", "-1", "x", "1.5", "101"} {
		check("GET", "/api/v1/streams/orders/releases?limit="+limit, 400, "application/json", `"status":"error"`)
	}
	out := r.History("orders.dp")
	for limit, want := range map[string]int{"": 10, "?limit=3": 3, "?limit=100": 10, "?partition=0&limit=1": 1} {
		var answer struct{ Data []json.RawMessage }
		fixtures.Must(t,
			json.Unmarshal([]byte(check("GET", "/api/v1/streams/orders/releases"+limit, 200, "application/json")),
				&answer))
		if len(answer.Data) != want {
			t.Errorf("%s: %d releases, want %d", limit, len(answer.Data), want)
		}
		for i, value := range answer.Data {
			// The releases are as published, the newest first.
			if want := out.ByKey[fmt.Sprintf("orders/0/1/%d", 10-i)].Value; string(value) != want {
				t.Errorf("%s: release %d is\n%s\n%s", limit, i, value, want)
			}
			fixtures.Conforms(t, string(value))
		}
	}

	// Only this user can open the socket for changes.
	s := filepath.Join(r.Dir, "state")
	for path, mode := range map[string]os.FileMode{
		filepath.Join(s, httpapi.ControlSocket): 0o600 | os.ModeSocket,
		filepath.Join(s, "ledger.jsonl"):        0o600,
		filepath.Join(s, "lock"):                0o600,
		s:                                       0o700 | os.ModeDir,
		filepath.Join(s, "tasks"):               0o700 | os.ModeDir,
		r.File(""):                              0o700 | os.ModeDir,
		r.File("secret-1"):                      0o600,
		r.File("manifest-1"):                    0o600,
		r.File(state.CheckpointName):            0o600,
		r.File(state.PreviousName):              0o600,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, mode)
		}
	}
	for _, body := range []string{"", "[]", "{", strings.Repeat(" ", 1<<17)} {
		req, err := http.NewRequest("POST", "http://daemon/epoch/close", strings.NewReader(body))
		fixtures.Must(t, err)
		res := x.ControlRaw(req)
		if res.StatusCode != 400 {
			t.Errorf("control request %.10q: %s", body, res.Status)
		}
	}
	if err := x.ControlOf("nobody", task.RequestClose, epoch.OpenRequest{}); err == nil ||
		!strings.Contains(err.Error(), "no task nobody-0") {
		t.Errorf("close of a task that does not exist: %v", err)
	}
	x.End()
	if left, _ := filepath.Glob(filepath.Join(s, "*.sock")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestRestoredModes: access that a copied directory gives to others is removed before anything is created in it.
func TestRestoredModes(t *testing.T) {
	t.Parallel()
	r := streamtest.Ran(t, fixtures.OrdersStream)
	for _, dir := range []string{r.File(""), filepath.Join(r.Dir, "state", "tasks")} {
		fixtures.Must(t, os.Chmod(dir, 0o755))
	}
	fixtures.Must(t, os.Chmod(r.File("secret-1"), 0o644))
	x := r.Start()
	x.Until("up", func(s monitor.TaskStatus) bool { return s.State == monitor.StateRunning })
	for _, dir := range []string{r.File(""), filepath.Join(r.Dir, "state", "tasks")} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", dir, info.Mode(), err)
		}
	}
	x.End()
}

// TestHTTPReasons: readiness names every task that is not running.
func TestHTTPReasons(t *testing.T) {
	t.Parallel()
	r := streamtest.NewRig(t,
		fixtures.OrdersStream+
			strings.ReplaceAll(
				fixtures.With(fixtures.OrdersStream, `"orders.dp"`, `"second.dp"`, `topic = "orders"`,
					`topic = "missing"`), "stream.orders", "stream.second"))
	r.Produce(0, 150)
	x := r.Start()
	x.Published(1)
	x.Until("the second waits", func(monitor.TaskStatus) bool { return x.D.Status()[1].State == monitor.StateRetrying })
	code, body := x.Get("/-/ready")
	if code != 503 || !strings.Contains(body, "task second-0 is retrying") || strings.Contains(body, "orders-0") {
		t.Errorf("ready is %d %s", code, body)
	}
	// One of the two tasks is closed: the daemon waits for the other, and names what is missing.
	fixtures.Must(t, x.Control(task.RequestClose, epoch.OpenRequest{}))
	x.Until("closed", func(s monitor.TaskStatus) bool { return s.State == monitor.StateClosed })
	if code, body := x.Get("/-/ready"); code != 503 || !strings.Contains(body, "task orders-0 is closed") {
		t.Errorf("ready is %d %s", code, body)
	}
	x.End()
}
