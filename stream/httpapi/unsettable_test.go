package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/epoch"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/task"
)

// fakeDaemon stores the last request, and shows one task.
type fakeDaemon struct {
	asked  task.Request
	status monitor.TaskStatus
}

func (d *fakeDaemon) Status() []monitor.TaskStatus          { return []monitor.TaskStatus{d.status} }
func (d *fakeDaemon) Group() *cluster.Status                { return nil }
func (d *fakeDaemon) Patterns() []PatternStatus             { return nil }
func (d *fakeDaemon) Reload(ReloadRequest) (*Reload, error) { return nil, nil }
func (d *fakeDaemon) Waiting() []string                     { return nil }
func (d *fakeDaemon) Shown() []ShownTask                    { return []ShownTask{fakeTask{d}} }
func (d *fakeDaemon) Streams() []string                     { return nil }
func (d *fakeDaemon) Ask(_, _ context.Context, q task.Request) error {
	d.asked = q
	return nil
}

type fakeTask struct{ d *fakeDaemon }

func (fakeTask) Named() core.Task                              { return core.Task{Stream: "orders"} }
func (x fakeTask) Status() monitor.TaskStatus                  { return x.d.status }
func (fakeTask) Releases(int) []json.RawMessage                { return nil }
func (fakeTask) After(context.Context, uint64) []monitor.Point { return nil }

// TestControlUnsettable: a control request can set only the fields that operators may set. Only the daemon decides
// whether an opening is automatic, and from which offset to search for unknown releases. The path determines the kind
// of the request.
func TestControlUnsettable(t *testing.T) {
	t.Parallel()
	var names []string
	for _, name := range []string{"Automatic", "Unasked", "SearchFrom", "Search_From", "Output", "Kind", "Reply"} {
		names = append(names, name, strings.ToLower(name), strings.ToUpper(name), strings.ToLower(name[:1])+name[1:])
	}
	for _, name := range names {
		for _, value := range []string{"true", "7", `"recover"`, "{}"} {
			field := fmt.Sprintf("%q: %s", name, value)
			const request = `{%s, "stream": "orders", "partition": 1, "open": {%[1]s, "from": "latest"}, "republish": {%[1]s}}`
			body := fmt.Sprintf(request, field)
			d := &fakeDaemon{}
			w := httptest.NewRecorder()
			asked := httptest.NewRequest("POST", "/epoch/open", strings.NewReader(body))
			(&Server{Daemon: d}).controlHandler(t.Context()).ServeHTTP(w, asked)
			if w.Code != 200 {
				t.Fatalf("%s: %d %s", body, w.Code, w.Body)
			}
			want := task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: 1}
			want.Open.From = "latest"
			if !reflect.DeepEqual(d.asked, want) {
				t.Errorf("%s asks for %+v", body, d.asked)
			}
		}
	}
}

// TestControlBytes: a request is encoded in the same bytes as by commands and daemons of other versions.
func TestControlBytes(t *testing.T) {
	t.Parallel()
	q := task.Request{Kind: task.RequestOpen, Stream: "orders", Partition: 1, Reply: make(chan error)}
	q.Open = epoch.OpenRequest{From: "latest", SameLog: true, Reason: "requested", SearchFrom: 7}
	got, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	want :=
		`{"stream":"orders","partition":1,"open":{"from":"latest","same_log":true,"reason":"requested"},"republish":{}}`
	if string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestStatusHides: fields of the status that are only for metrics appear in no answer.
func TestStatusHides(t *testing.T) {
	t.Parallel()
	const hidden = 87654321
	d := &fakeDaemon{status: monitor.TaskStatus{Stream: "orders", LogStart: hidden, Warmup: hidden}}
	d.status.Schemas = []connect.SchemaStatus{{Subject: "orders-value", Latest: true}}
	handler := (&Server{Daemon: d, Registry: monitor.NewMetrics(false, false, "", false).Registry}).Handler()
	for _, path := range []string{"/api/v1/status", "/api/v1/streams/orders"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		body := w.Body.String()
		if w.Code != 200 || !strings.Contains(body, `"orders-value"`) {
			t.Fatalf("%s: %d %s", path, w.Code, body)
		}
		for _, name := range []string{fmt.Sprint(hidden), "logstart", "log_start", `"warmup`, `"latest"`} {
			if strings.Contains(strings.ToLower(body), name) {
				t.Errorf("%s shows %s: %s", path, name, body)
			}
		}
	}
}
