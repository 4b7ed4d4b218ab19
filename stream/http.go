package stream

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

//go:embed release.schema.json
var releaseJSONSchema []byte

// ControlSocket is the name of the socket in the state directory by which
// commands reach a running daemon.
const ControlSocket = "control.sock"

// serve starts the HTTP server and the control socket. stop ends both and lets
// running requests finish.
func (d *Daemon) serve(ctx context.Context, wg *sync.WaitGroup) (stop func(), err error) {
	listener, err := net.Listen("tcp", d.cfg.HTTP.Listen)
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w", err)
	}
	path := filepath.Join(d.cfg.State.Dir, ControlSocket)
	control, err := listenPrivate(filepath.Join(d.cfg.State.Dir, "tasks"), path)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("%w: %w", ErrState, err)
	}
	d.address.Store(listener.Addr().(*net.TCPAddr))
	var stops []func()
	for _, s := range []struct {
		l net.Listener
		h http.Handler
	}{{listener, d.handler()}, {control, d.controlHandler(ctx)}} {
		server := &http.Server{Handler: s.h, ReadHeaderTimeout: 5 * time.Second}
		wg.Go(func() {
			if err := server.Serve(s.l); !errors.Is(err, http.ErrServerClosed) {
				d.log.Error("http server stopped", "error", err.Error())
			}
		})
		stops = append(stops, func() {
			end, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			server.Shutdown(end)
			server.Close()
		})
	}
	d.log.Info("serving", "address", d.Addr())
	return func() {
		for _, s := range stops {
			s()
		}
		os.Remove(path)
	}, nil
}

// listenPrivate listens on a socket that only this user can open, from its
// first moment on: it is made in a directory that is closed to others, and moved.
func listenPrivate(private, path string) (net.Listener, error) {
	made := filepath.Join(private, ControlSocket)
	os.Remove(made) // of a process that was killed; the lock says that none runs
	l, err := net.Listen("unix", made)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it has another name by then
	err = os.Chmod(made, 0o600)
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// index is what a visitor of the address itself finds.
const index = `streamdp

/metrics                            for Prometheus
/-/healthy                          the process serves
/-/ready                            every task runs, or what is missing
/api/v1/status                      all tasks
/api/v1/streams                     names of the streams
/api/v1/streams/NAME                its tasks
/api/v1/streams/NAME/releases       its newest releases; ?limit=1&partition=0
/api/v1/schema/release.json         JSON Schema of a release
`

// handler serves everything that is read.
func (d *Daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, index) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{Registry: d.metrics.registry}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", d.ready)
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		success(w, struct {
			Version string       `json:"version"`
			Started time.Time    `json:"started"`
			Tasks   []TaskStatus `json:"tasks"`
		}{d.version, d.started.UTC(), d.Status()})
	})
	mux.HandleFunc("GET /api/v1/streams", func(w http.ResponseWriter, _ *http.Request) {
		names := []string{}
		for _, s := range d.cfg.Streams {
			names = append(names, s.Name)
		}
		success(w, names)
	})
	mux.HandleFunc("GET /api/v1/streams/{name}", d.streamStatus)
	mux.HandleFunc("GET /api/v1/streams/{name}/releases", d.streamReleases)
	mux.HandleFunc("GET /api/v1/schema/release.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/schema+json")
		w.Write(releaseJSONSchema)
	})
	return mux
}

// ready answers 200 if every task runs and the cluster answers, else 503 with
// what is missing.
func (d *Daemon) ready(w http.ResponseWriter, _ *http.Request) {
	var missing []string
	for _, s := range d.Status() {
		if s.State != stateRunning {
			text := fmt.Sprintf("task %s-%d is %s", s.Stream, s.Partition, s.State)
			if s.Reason != "" {
				text += " (" + s.Reason + ")"
			}
			missing = append(missing, text)
		}
	}
	if len(missing) == 0 {
		fmt.Fprintln(w, "ready")
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	for _, m := range missing {
		fmt.Fprintln(w, m)
	}
}

// streamRunners returns the runners that a request's path and partition name.
func (d *Daemon) streamRunners(req *http.Request) (found []*runner, err error) {
	partition := req.URL.Query().Get("partition")
	for _, r := range d.runners {
		if r.task.Stream == req.PathValue("name") && (partition == "" || partition == strconv.Itoa(r.task.Partition)) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no such stream or partition")
	}
	return found, nil
}

func (d *Daemon) streamStatus(w http.ResponseWriter, req *http.Request) {
	found, err := d.streamRunners(req)
	if err != nil {
		failure(w, http.StatusNotFound, err)
		return
	}
	tasks := []TaskStatus{}
	for _, r := range found {
		tasks = append(tasks, r.Status())
	}
	success(w, tasks)
}

// streamReleases answers with the newest published releases, as they were
// published.
func (d *Daemon) streamReleases(w http.ResponseWriter, req *http.Request) {
	found, err := d.streamRunners(req)
	if err != nil {
		failure(w, http.StatusNotFound, err)
		return
	}
	limit := recentReleases
	if text := req.URL.Query().Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 {
			failure(w, http.StatusBadRequest, errors.New("limit must be a positive number"))
			return
		}
	}
	releases := []json.RawMessage{}
	for _, r := range found {
		releases = append(releases, r.releases(limit)...)
	}
	success(w, releases[:min(limit, len(releases))])
}

// success and failure answer in the envelope of Prometheus' API.
func success(w http.ResponseWriter, data any) {
	answer(w, http.StatusOK, map[string]any{"status": "success", "data": data})
}

func failure(w http.ResponseWriter, code int, err error) {
	answer(w, code, map[string]any{"status": "error", "error": err.Error()})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}

// ControlRequest is what a command asks of a running daemon.
type ControlRequest struct {
	Stream    string      `json:"stream"`
	Partition int         `json:"partition"`
	Open      OpenRequest `json:"open"`
}

// ControlAnswer is what the daemon says to it.
type ControlAnswer struct {
	Status string `json:"status"` // success, error
	Error  string `json:"error"`
	Reason string `json:"reason"` // of the halt that the request met
}

// Err returns the error that the request met, as OpenEpoch and CloseEpoch
// return it.
func (a *ControlAnswer) Err() error {
	switch err := errors.New(a.Error); {
	case a.Status == "success":
		return nil
	case a.Reason != "":
		return &halt{a.Reason, err}
	default:
		return err
	}
}

// controlHandler serves what changes a task.
func (d *Daemon) controlHandler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	for _, kind := range []string{requestOpen, requestClose} {
		mux.HandleFunc("POST /epoch/"+kind, func(w http.ResponseWriter, req *http.Request) {
			var q ControlRequest
			if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, 1<<16)).Decode(&q); err != nil {
				failure(w, http.StatusBadRequest, errors.New("not a control request"))
				return
			}
			if err := d.ask(ctx, req.Context(), Task{q.Stream, q.Partition}, request{kind: kind, open: q.Open, reply: make(chan error, 1)}); err != nil {
				a := ControlAnswer{Status: "error", Error: err.Error()}
				if h := (*halt)(nil); errors.As(err, &h) {
					a.Reason = h.reason
				}
				answer(w, http.StatusConflict, a)
				return
			}
			success(w, nil)
		})
	}
	return mux
}

// ask hands a request to its task's owner and waits for the answer.
func (d *Daemon) ask(ctx, patience context.Context, t Task, q request) error {
	for _, r := range d.runners {
		if r.task != t {
			continue
		}
		select {
		case r.requests <- q:
		case <-ctx.Done():
			return errors.New("the daemon is stopping")
		case <-patience.Done():
			return patience.Err()
		}
		select {
		case err := <-q.reply:
			return err
		case <-ctx.Done():
			return errors.New("the daemon is stopping")
		case <-patience.Done():
			return patience.Err()
		}
	}
	return fmt.Errorf("the configuration has no task %s", t)
}
