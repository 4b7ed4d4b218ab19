// Package tracetest has a receiver of traces in OTLP over HTTP, for tests.
package tracetest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/slim/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span as the receiver decodes it.
type Span struct {
	Trace, ID, Parent string // in hexadecimal; Parent is empty for the root span of a trace
	Name              string
	Kind              string
	Failed            bool
	Start, End        time.Time
	Attributes        map[string]any // values are int64 or string
}

// Receiver is an HTTP server that collects spans. Its fields change how it answers.
type Receiver struct {
	tb     testing.TB
	Server *httptest.Server
	// Status, if not 0, is the HTTP status of each answer; the spans of these requests are dropped.
	Status atomic.Int32
	// Hang, if not nil, delays the answers until the channel is closed.
	Hang atomic.Pointer[chan struct{}]
	// Rejects is the number of rejected spans that each answer reports.
	Rejects atomic.Int64
	// Requests counts the requests received so far, answered or not.
	Requests atomic.Int64

	mu       sync.Mutex
	spans    []Span
	resource map[string]any
	header   http.Header
	path     string
}

// New starts a receiver on the loopback address.
func New(tb testing.TB) *Receiver { return start(tb, (*httptest.Server).Start) }

// NewTLS starts a receiver with TLS; Server.Certificate returns its certificate.
func NewTLS(tb testing.TB) *Receiver { return start(tb, (*httptest.Server).StartTLS) }

func start(tb testing.TB, start func(*httptest.Server)) *Receiver {
	r := &Receiver{tb: tb}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(r.serve))
	start(r.Server)
	tb.Cleanup(r.Server.Close)
	return r
}

// Vanish closes the listener and all connections. Call Return to listen at the same address again.
func (r *Receiver) Vanish() {
	r.Server.CloseClientConnections()
	r.Server.Listener.Close()
}

// Return makes a vanished receiver listen again.
func (r *Receiver) Return() {
	r.tb.Helper()
	l, err := net.Listen("tcp", r.Server.Listener.Addr().String())
	if err != nil {
		r.tb.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(r.serve)}
	go s.Serve(l)
	r.tb.Cleanup(func() { s.Close() })
}

func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) {
	r.Requests.Add(1)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	if hang := r.Hang.Load(); hang != nil {
		<-*hang
		return
	}
	if code := int(r.Status.Load()); code != 0 {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(code)
		return
	}
	var said collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &said); err != nil || req.Method != http.MethodPost ||
		req.Header.Get("Content-Type") != "application/x-protobuf" {
		r.tb.Errorf("no OTLP request: %v, %s, %s", err, req.Method, req.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.keep(&said, req)
	var answer collector.ExportTraceServiceResponse
	if n := r.Rejects.Load(); n > 0 {
		answer.PartialSuccess = &collector.ExportTracePartialSuccess{RejectedSpans: n, ErrorMessage: "no room"}
	}
	text, err := proto.Marshal(&answer)
	if err != nil {
		r.tb.Error(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	w.Write(text)
}

func (r *Receiver) keep(said *collector.ExportTraceServiceRequest, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header, r.path = req.Header, req.URL.Path
	for _, by := range said.ResourceSpans {
		r.resource = r.attributes(by.Resource.Attributes)
		for _, scope := range by.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans = append(r.spans, r.span(s))
			}
		}
	}
}

// span decodes a span. It fails the test if the span contains something for which [Span] has no field.
func (r *Receiver) span(s *otlp.Span) Span {
	if len(s.TraceId) != 16 || len(s.SpanId) != 8 || s.TraceState != "" || len(s.Events)+len(s.Links) > 0 ||
		s.Status.GetMessage() != "" || s.StartTimeUnixNano > s.EndTimeUnixNano {
		r.tb.Errorf("invalid span, or one with unexpected fields: %v", s)
	}
	return Span{
		Trace: fmt.Sprintf("%x", s.TraceId), ID: fmt.Sprintf("%x", s.SpanId), Parent: fmt.Sprintf("%x", s.ParentSpanId),
		Name: s.Name, Kind: s.Kind.String(), Failed: s.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR,
		Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
		Attributes: r.attributes(s.Attributes),
	}
}

func (r *Receiver) attributes(list []*common.KeyValue) map[string]any {
	all := map[string]any{}
	for _, a := range list {
		if _, twice := all[a.Key]; twice {
			r.tb.Errorf("attribute %s occurs twice", a.Key)
		}
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			all[a.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			all[a.Key] = v.IntValue
		default:
			r.tb.Errorf("attribute %s has the unexpected type %T", a.Key, v)
		}
	}
	return all
}

// Spans returns the spans received so far.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Last returns path and headers of the last accepted request, and the resource attributes of its sender.
func (r *Receiver) Last() (path string, header http.Header, resource map[string]any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.path, r.header, r.resource
}
