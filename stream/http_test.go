package stream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream)
	r.produce(0, 1050)
	x := r.start()
	x.published(10)
	x.until("the last is remembered", func(TaskStatus) bool { return len(x.in.Tasks()[0].releases(100)) == 10 })

	check := func(method, path string, code int, contentType string, words ...string) string {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+x.d.Addr()+path, nil)
		must(t, err)
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		defer res.Body.Close()
		body := readAll(t, res)
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
	check("GET", "/metrics", 200, "text/plain", `streamdp_step{partition="0",stream="orders"} 10`, "go_goroutines", "process_resident_memory_bytes")
	check("GET", "/api/v1/status", 200, "application/json", `"status":"success"`, `"state":"running"`, `"step":10`, `"next_offset":1050`, `"version":"test"`, `"last_commit"`, `"last_release"`)
	check("GET", "/api/v1/streams", 200, "application/json", `"data":["orders"]`)
	check("GET", "/api/v1/streams/orders", 200, "application/json", `"epoch":1`)
	check("GET", "/api/v1/streams/orders?partition=0", 200, "application/json", `"epoch":1`)
	check("GET", "/api/v1/streams/orders?partition=1", 404, "application/json", `"status":"error"`)
	check("GET", "/api/v1/streams/nobody", 404, "application/json", `"status":"error"`)
	check("GET", "/api/v1/streams/nobody/releases", 404, "application/json", `"status":"error"`)
	if got := check("GET", "/api/v1/schema/release.json", 200, "application/schema+json"); got != string(releaseSchema(t)) {
		t.Error("the schema served is not the file")
	}
	check("GET", "/nothing", 404, "text/plain")
	check("POST", "/api/v1/status", 405, "text/plain")
	for _, path := range []string{"/epoch/open", "/epoch/close"} {
		check("POST", path, 404, "text/plain") // on the control socket only
	}
	for _, path := range []string{"/debug/pprof/", "/debug/vars"} {
		check("GET", path, 404, "text/plain")
	}
	for _, limit := range []string{"0", "-1", "x", "1.5", "101"} {
		check("GET", "/api/v1/streams/orders/releases?limit="+limit, 400, "application/json", `"status":"error"`)
	}
	out := r.history("orders.dp")
	for limit, want := range map[string]int{"": 10, "?limit=3": 3, "?limit=100": 10, "?partition=0&limit=1": 1} {
		var answer struct{ Data []json.RawMessage }
		must(t, json.Unmarshal([]byte(check("GET", "/api/v1/streams/orders/releases"+limit, 200, "application/json")), &answer))
		if len(answer.Data) != want {
			t.Errorf("%s: %d releases, want %d", limit, len(answer.Data), want)
		}
		for i, value := range answer.Data {
			// As published, the newest first.
			if want := out.byKey[fmt.Sprintf("orders/0/1/%d", 10-i)].value; string(value) != want {
				t.Errorf("%s: release %d is\n%s\n%s", limit, i, value, want)
			}
			conforms(t, string(value))
		}
	}

	// What changes a task is for this user only.
	state := filepath.Join(r.dir, "state")
	for path, mode := range map[string]os.FileMode{
		filepath.Join(state, ControlSocket):  0o600 | os.ModeSocket,
		filepath.Join(state, "ledger.jsonl"): 0o600,
		filepath.Join(state, "lock"):         0o600,
		state:                                0o700 | os.ModeDir,
		filepath.Join(state, "tasks"):        0o700 | os.ModeDir,
		r.file(""):                           0o700 | os.ModeDir,
		r.file("secret-1"):                   0o600,
		r.file("manifest-1"):                 0o600,
		r.file(checkpointName):               0o600,
		r.file(previousName):                 0o600,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, mode)
		}
	}
	for _, body := range []string{"", "[]", "{", strings.Repeat(" ", 1<<17)} {
		req, err := http.NewRequest("POST", "http://daemon/epoch/close", strings.NewReader(body))
		must(t, err)
		res := x.controlRaw(req)
		if res.StatusCode != 400 {
			t.Errorf("control request %.10q: %s", body, res.Status)
		}
	}
	if err := x.controlOf("nobody", requestClose, OpenRequest{}); err == nil || !strings.Contains(err.Error(), "no task nobody-0") {
		t.Errorf("close of a task that does not exist: %v", err)
	}
	x.end()
	if left, _ := filepath.Glob(filepath.Join(state, "*.sock")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// TestRestoredModes: what a copy has left open to others is closed before
// anything is made in it.
func TestRestoredModes(t *testing.T) {
	t.Parallel()
	r := ran(t, ordersStream)
	for _, dir := range []string{r.file(""), filepath.Join(r.dir, "state", "tasks")} {
		must(t, os.Chmod(dir, 0o755))
	}
	must(t, os.Chmod(r.file("secret-1"), 0o644))
	x := r.start()
	x.until("up", func(s TaskStatus) bool { return s.State == stateRunning })
	for _, dir := range []string{r.file(""), filepath.Join(r.dir, "state", "tasks")} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v %v", dir, info.Mode(), err)
		}
	}
	x.end()
}

// TestHTTPReasons: readiness names every task that is not running.
func TestHTTPReasons(t *testing.T) {
	t.Parallel()
	r := newRig(t, ordersStream+strings.ReplaceAll(with(ordersStream, `"orders.dp"`, `"second.dp"`, `topic = "orders"`, `topic = "missing"`), "stream.orders", "stream.second"))
	r.produce(0, 150)
	x := r.start()
	x.published(1)
	x.until("the second waits", func(TaskStatus) bool { return x.d.Status()[1].State == stateRetrying })
	code, body := x.get("/-/ready")
	if code != 503 || !strings.Contains(body, "task second-0 is retrying") || strings.Contains(body, "orders-0") {
		t.Errorf("ready is %d %s", code, body)
	}
	// One of the two is closed: the daemon waits for the other, and says what
	// is missing.
	must(t, x.control(requestClose, OpenRequest{}))
	x.until("closed", func(s TaskStatus) bool { return s.State == stateClosed })
	if code, body := x.get("/-/ready"); code != 503 || !strings.Contains(body, "task orders-0 is closed") {
		t.Errorf("ready is %d %s", code, body)
	}
	x.end()
}
