// Package httpapi is the HTTP server of a daemon, with its status page and metrics, and the control socket through
// which commands reach the daemon.
package httpapi

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/failure"
	"github.com/streamdp/streamdp/stream/monitor"
	"github.com/streamdp/streamdp/stream/page"
	"github.com/streamdp/streamdp/stream/task"
)

//go:embed release.schema.json
var releaseJSONSchema []byte

// ControlSocket is the name of the socket in the state directory through which commands
// reach a running daemon.
const ControlSocket = "control.sock"

// Daemon is the part of the daemon that the server shows and controls.
type Daemon interface {
	// Status returns the status of all tasks.
	Status() []monitor.TaskStatus
	// Group returns the instance's view of its group, or nil if it shares no tasks.
	Group() *cluster.Status
	// Patterns returns the status of the patterns, in their order.
	Patterns() []PatternStatus
	// Reload reads the configuration again.
	Reload(ReloadRequest) (*Reload, error)
	// Waiting lists facts that are not known yet, such as a topic's partitions. Until they are known, some tasks are
	// missing from Status.
	Waiting() []string
	// Shown returns all tasks.
	Shown() []ShownTask
	// Streams returns the names of the streams.
	Streams() []string
	// Ask passes a request to its task's owner and waits for the answer until one of the contexts ends.
	Ask(ctx, patience context.Context, q task.Request) error
}

// ShownTask is a task, as the server shows it.
type ShownTask interface {
	// Named returns the task's name.
	Named() core.Task
	// Status returns the task's status.
	Status() monitor.TaskStatus
	// Releases returns the newest published releases, at most limit, in their published form.
	Releases(limit int) []json.RawMessage
	// After returns the releases after release n of this process; with n = 0, all of them.
	After(ctx context.Context, n uint64) []monitor.Point
}

// Server is the HTTP server and the control socket.
type Server struct {
	Daemon   Daemon
	Access   *Access     // for the HTTP server; only this user can open the control socket
	HTTP     config.HTTP // the table of the configuration
	Dir      string      // state directory
	Private  string      // subdirectory of Dir that no other user can access
	Registry *prometheus.Registry
	Log      *slog.Logger
	Version  string                      // version of the program
	Started  time.Time                   // start time of the process
	Insecure bool                        // noise comes from a seed instead of the master key
	address  atomic.Pointer[net.TCPAddr] // set once the server listens
}

// Addr returns the server's address, or "" before it listens.
func (s *Server) Addr() string {
	if a := s.address.Load(); a != nil {
		return a.String()
	}
	return ""
}

// Guarded returns the public handler behind the checks of host, password and address.
func (s *Server) Guarded() http.Handler { return s.Access.guard(s.Handler()) }

// Serve starts the HTTP server and the control socket. stop ends both, after the requests in progress.
func (s *Server) Serve(ctx context.Context, wg *sync.WaitGroup) (stop func(), err error) {
	listener, err := s.Access.Listen()
	if err != nil {
		return nil, fmt.Errorf("http.listen: %w", err)
	}
	path := filepath.Join(s.Dir, ControlSocket)
	control, err := listenPrivate(filepath.Join(s.Dir, s.Private), path)
	if err != nil {
		listener.Close()
		return nil, fmt.Errorf("%w: %w", failure.ErrState, err)
	}
	s.address.Store(listener.Addr().(*net.TCPAddr))
	var stops []func()
	for _, part := range []struct {
		l     net.Listener
		h     http.Handler
		write time.Duration // timeout for writing an answer; 0 for control requests, because they wait for their task
	}{{listener, s.Guarded(), writeTimeout}, {control, s.controlHandler(ctx), 0}} {
		server := &http.Server{
			Handler: part.h, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: part.write,
			IdleTimeout:    idleTimeout,
			MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		}
		wg.Go(func() {
			if err := server.Serve(part.l); !errors.Is(err, http.ErrServerClosed) {
				s.Log.Error("http server stopped", "error", err.Error())
			}
		})
		stops = append(stops, func() {
			end, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			server.Shutdown(end)
			server.Close()
		})
	}
	s.Log.Info("serving", "address", s.Addr())
	return func() {
		for _, stop := range stops {
			stop()
		}
		os.Remove(path)
	}, nil
}

// listenPrivate listens on a socket that only this user can open, even while it is being created: it creates the socket
// in a directory that others cannot access, and then moves it.
func listenPrivate(private, path string) (net.Listener, error) {
	made := filepath.Join(private, ControlSocket)
	// A killed process may have left the socket. The lock of the directory proves that none is running now.
	os.Remove(made)
	l, err := net.Listen("unix", made)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // because the socket is renamed below
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

// index is the answer at / for clients that do not ask for HTML. A browser gets the status page.
const index = `streamdp

/                                   the status page, for browsers
/metrics                            for Prometheus
/-/healthy                          the process serves
/-/ready                            every task runs, or what is missing
/-/reload                           POST: read the configuration again
/api/v1/status                      all tasks
/api/v1/streams                     names of the streams
/api/v1/streams/NAME                its tasks
/api/v1/streams/NAME/releases       its newest releases; ?limit=1&partition=0
/api/v1/streams/NAME/series         its released values over time; ?partition=0&after=0
/api/v1/schema/release.json         JSON Schema of a release
`

// Handler serves all pages and data that can be read, and accepts reloads.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(req.Header.Get("Accept"), "text/html") {
			page.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Vary", "Accept")
		io.WriteString(w, index)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{Registry: s.Registry}))
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "healthy") })
	mux.HandleFunc("GET /-/ready", s.ready)
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) {
		success(w, struct {
			Version  string               `json:"version"`
			Started  time.Time            `json:"started"`
			Exposure string               `json:"exposure"`
			Insecure bool                 `json:"insecure,omitempty"`
			Group    *cluster.Status      `json:"group,omitempty"`
			Patterns []PatternStatus      `json:"patterns,omitempty"`
			Tasks    []monitor.TaskStatus `json:"tasks"`
		}{s.Version, s.Started.UTC(), s.HTTP.Exposure, s.Insecure, s.Daemon.Group(), s.Daemon.Patterns(),
			s.Daemon.Status()})
	})
	mux.HandleFunc("GET /api/v1/streams", func(w http.ResponseWriter, _ *http.Request) {
		success(w, s.Daemon.Streams())
	})
	mux.HandleFunc("GET /api/v1/streams/{name}", s.streamStatus)
	mux.HandleFunc("GET /api/v1/streams/{name}/releases", s.streamReleases)
	mux.HandleFunc("GET /api/v1/streams/{name}/series", s.streamSeries)
	mux.HandleFunc("GET /api/v1/schema/release.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/schema+json")
		w.Write(releaseJSONSchema)
	})
	mux.Handle("POST /-/reload", http.NewCrossOriginProtection().Handler(http.HandlerFunc(s.reloadOverHTTP)))
	return mux
}

// reloadOverHTTP reloads the configuration for a client of the listener. It opens no epoch. It refuses if anybody may
// reach the listener, because not everybody may reload or read the content of the file.
func (s *Server) reloadOverHTTP(w http.ResponseWriter, req *http.Request) {
	if h := s.HTTP; h.Exposure == "public" || h.BasicAuth == nil && !config.Loopback(h.Listen) {
		refuse(w, http.StatusForbidden,
			errors.New(
				"cannot reload over this listener: it is public, or other machines reach it without a password; use "+
					"streamdp reload, or SIGHUP"))
		return
	}
	// A reload may take long, because it waits for tasks to stop.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(reloadTimeout))
	s.answerReload(w, ReloadRequest{})
}

// reloadTimeout is the maximum time until a reload over HTTP is answered.
const reloadTimeout = 5 * time.Minute

// answerReload reloads the configuration and answers with the result.
func (s *Server) answerReload(w http.ResponseWriter, q ReloadRequest) {
	found, err := s.Daemon.Reload(q)
	if err == nil {
		answer(w, http.StatusOK, ReloadAnswer{Status: "success", Data: found})
		return
	}
	a := ReloadAnswer{Status: "error", Error: err.Error(), Data: found}
	var faults config.Faults
	if a.Configuration = errors.As(err, &faults) || errors.As(err, new(*RefusedError)); a.Configuration {
		answer(w, http.StatusConflict, a)
		return
	}
	answer(w, http.StatusInternalServerError, a)
}

// ReloadAnswer is the daemon's answer to a reload.
type ReloadAnswer struct {
	Status string `json:"status"` // "success" or "error"
	Error  string `json:"error,omitempty"`
	// Configuration is true if the configuration is invalid, or if a running daemon cannot make the change.
	Configuration bool    `json:"configuration,omitempty"`
	Data          *Reload `json:"data,omitempty"` // nil: the file could not be read or is invalid
}

// ready answers 200 if every task runs, the cluster answers, and no stream's published numbers show that almost none of
// its records count. Otherwise it answers 503 with a line for each problem.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	missing := s.Daemon.Waiting()
	if g := s.Daemon.Group(); g != nil {
		missing = append(missing, g.Missing()...)
	}
	for _, st := range s.Daemon.Status() {
		if st.State != monitor.StateRunning {
			text := fmt.Sprintf("task %s is %s", core.Task{Stream: st.Stream, Partition: st.Partition}, st.State)
			if st.Reason != "" {
				text += " (" + st.Reason + ")"
			}
			if st.Message != "" {
				text += ": " + strings.ReplaceAll(st.Message, "\n", " ")
			}
			missing = append(missing, text)
		}
		if st.FewValid && st.Unit != "record" {
			missing = append(missing,
				fmt.Sprintf("task %s perhaps publishes only noise: its published numbers show that possibly none of "+
					"its records counts",
					core.Task{Stream: st.Stream, Partition: st.Partition}))
		} else if st.FewValid {
			missing = append(missing,
				fmt.Sprintf(
					"task %s publishes mostly noise: its published numbers show that at most a tenth of its records "+
						"count in full",
					core.Task{Stream: st.Stream, Partition: st.Partition}))
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

// streamRunners returns the tasks of the stream in a request. If the request also has a partition, it returns only the
// task of this partition.
func (s *Server) streamRunners(req *http.Request) (found []ShownTask, err error) {
	partition := req.URL.Query().Get("partition")
	for _, r := range s.Daemon.Shown() {
		if t := r.Named(); t.Stream == req.PathValue("name") &&
			(partition == "" || partition == core.PartitionName(t.Partition)) {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no such stream or partition")
	}
	return found, nil
}

func (s *Server) streamStatus(w http.ResponseWriter, req *http.Request) {
	found, err := s.streamRunners(req)
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	tasks := []monitor.TaskStatus{}
	for _, r := range found {
		tasks = append(tasks, r.Status())
	}
	success(w, tasks)
}

// streamReleases answers with the newest releases, in their published form.
func (s *Server) streamReleases(w http.ResponseWriter, req *http.Request) {
	found, err := s.streamRunners(req)
	if err != nil {
		refuse(w, http.StatusNotFound, err)
		return
	}
	limit := task.RecentReleases
	if text := req.URL.Query().Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > task.RecentReleases {
			refuse(w, http.StatusBadRequest,
				fmt.Errorf("limit must be a number from 1 to %d, the number of releases kept here; the output topic "+
					"has all",
					task.RecentReleases))
			return
		}
	}
	releases := []json.RawMessage{}
	for _, r := range found {
		releases = append(releases, r.Releases(limit)...)
	}
	success(w, releases[:min(limit, len(releases))])
}

// maxControlBytes is the maximum size of a control request. An exported epoch may include the parameters of a large
// model and a long ledger.
const maxControlBytes = 1 << 30

// controlHandler serves the requests that change a task, and reloads.
func (s *Server) controlHandler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	for _, kind := range []string{task.RequestOpen, task.RequestClose, task.RequestRecover, task.RequestRepublish} {
		mux.HandleFunc("POST /epoch/"+kind, func(w http.ResponseWriter, req *http.Request) {
			var q task.Request
			if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxControlBytes)).Decode(&q); err != nil {
				refuse(w, http.StatusBadRequest, errors.New("not a control request"))
				return
			}
			q.Kind = kind
			if err := s.Daemon.Ask(ctx, req.Context(), q); err != nil {
				answer(w, http.StatusConflict, task.NewAnswer(err))
				return
			}
			success(w, nil)
		})
	}
	mux.HandleFunc("POST /reload", func(w http.ResponseWriter, req *http.Request) {
		var q ReloadRequest
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxControlBytes)).Decode(&q); err != nil {
			refuse(w, http.StatusBadRequest, errors.New("not a control request"))
			return
		}
		s.answerReload(w, q)
	})
	return mux
}

// success writes a result, in the form of Prometheus' API.
func success(w http.ResponseWriter, data any) {
	answer(w, http.StatusOK, map[string]any{"status": "success", "data": data})
}

// refuse writes an error, in the form of Prometheus' API.
func refuse(w http.ResponseWriter, code int, err error) {
	answer(w, code, map[string]any{"status": "error", "error": err.Error()})
}

// answer writes a response as JSON.
func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}
