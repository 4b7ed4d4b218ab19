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

// Daemon is what the server shows and does: the daemon, as it sees it.
type Daemon interface {
	// Status returns the status of all tasks.
	Status() []monitor.TaskStatus
	// Group returns what the instance knows of its group, nil where it shares no tasks.
	Group() *cluster.Status
	// Patterns returns what is known of the patterns, in their order.
	Patterns() []PatternStatus
	// Reload reads the configuration again.
	Reload(ReloadRequest) (*Reload, error)
	// Waiting says what is not known yet, so that tasks are missing.
	Waiting() []string
	// Shown returns all tasks.
	Shown() []ShownTask
	// Streams returns the names of the streams.
	Streams() []string
	// Ask gives a request to its task's owner and waits for the answer, until one of the contexts ends.
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
	// After returns what was published after release n of this process; 0: everything.
	After(ctx context.Context, n uint64) []monitor.Point
}

// Server is the HTTP server and the control socket.
type Server struct {
	Daemon   Daemon
	Access   *Access     // of the HTTP server; the control socket is the user's own
	HTTP     config.HTTP // the table of the configuration
	Dir      string      // of the state
	Private  string      // directory in it that nobody else can access
	Registry *prometheus.Registry
	Log      *slog.Logger
	Version  string                      // of the program
	Started  time.Time                   // when the process began
	Insecure bool                        // a seed stands for the master key
	address  atomic.Pointer[net.TCPAddr] // once it listens
}

// Addr returns the server's address, once it listens.
func (s *Server) Addr() string {
	if a := s.address.Load(); a != nil {
		return a.String()
	}
	return ""
}

// Guarded returns the public handler behind the checks of host, password and address.
func (s *Server) Guarded() http.Handler { return s.Access.guard(s.Handler()) }

// Serve starts the HTTP server and the control socket. stop ends both, after the requests that
// are running.
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
		write time.Duration // a control request waits for its task, however long that takes
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

// listenPrivate listens on a socket that only this user can open, from its first moment on: it
// makes the socket in a directory that others cannot access, and then moves it.
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

// index is what a program that does not ask for HTML gets at the address itself; a browser
// gets the status page.
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

// Handler serves everything that can be read, and takes reloads.
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

// reloadOverHTTP reads the configuration again for somebody who reaches the listener. It opens no
// epoch. Where everybody may reach the listener, it is not for everybody, nor is what the file says.
func (s *Server) reloadOverHTTP(w http.ResponseWriter, req *http.Request) {
	if h := s.HTTP; h.Exposure == "public" || h.BasicAuth == nil && !config.Loopback(h.Listen) {
		refuse(w, http.StatusForbidden,
			errors.New(
				"a listener that is public, or that other machines reach without a password, takes no reload: use "+
					"streamdp reload, or SIGHUP"))
		return
	}
	// Tasks take their time to stop.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(reloadTimeout))
	s.answerReload(w, ReloadRequest{})
}

// reloadTimeout bounds the answer to a reload over HTTP.
const reloadTimeout = 5 * time.Minute

// answerReload reads the configuration again and says what came of it.
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
	Status string `json:"status"` // success, error
	Error  string `json:"error,omitempty"`
	// Configuration says that the configuration is at fault, or that a running daemon does not take it.
	Configuration bool    `json:"configuration,omitempty"`
	Data          *Reload `json:"data,omitempty"` // nil: the file could not be read, or has faults
}

// ready answers 200 if every task runs, the cluster answers, and published numbers do not say
// that hardly any record counts. Otherwise it answers 503 and says what is missing.
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
				fmt.Sprintf("task %s publishes noise: perhaps none of its records counts, by its published numbers",
					core.Task{Stream: st.Stream, Partition: st.Partition}))
		} else if st.FewValid {
			missing = append(missing,
				fmt.Sprintf(
					"task %s publishes noise: at most a tenth of its records count in full, by its published numbers",
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

// streamRunners returns the runners of the stream and partition that a request names.
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

// streamReleases answers with the newest published releases, in their published form.
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
				fmt.Errorf("limit must be a number from 1 to %d: so many releases are kept, the output topic has all",
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

// maxControlBytes is the largest control request. An exported epoch may have the
// parameters of a large model and a long ledger.
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

// success writes an answer with data, in the form of Prometheus' API.
func success(w http.ResponseWriter, data any) {
	answer(w, http.StatusOK, map[string]any{"status": "success", "data": data})
}

// refuse writes an answer with an error, in the same form.
func refuse(w http.ResponseWriter, code int, err error) {
	answer(w, code, map[string]any{"status": "error", "error": err.Error()})
}

// answer writes an answer as JSON.
func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(body)
}
