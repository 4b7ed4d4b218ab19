package trace

import (
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	otlp "go.opentelemetry.io/proto/slim/otlp/trace/v1"
)

// Keys are the names of all attributes that spans have. docs/operations.md lists them.
var Keys = []string{keyStream, keyPartition, keyInput, keyEpoch, keyStep, keyLast, keyError}

const (
	keyStream    = "streamdp.stream"
	keyPartition = "streamdp.partition"
	keyInput     = "streamdp.input_partition"
	keyEpoch     = "streamdp.epoch"
	keyStep      = "streamdp.step"
	keyLast      = "streamdp.last_step"
	keyError     = "error.type"
)

var kindOf = [kinds]otlp.Span_SpanKind{
	Steps: otlp.Span_SPAN_KIND_INTERNAL, Fetch: otlp.Span_SPAN_KIND_CLIENT, Close: otlp.Span_SPAN_KIND_INTERNAL,
	Commit: otlp.Span_SPAN_KIND_INTERNAL, Publish: otlp.Span_SPAN_KIND_PRODUCER,
}

// request returns the spans as an OTLP request.
func (t *Tracer) request(batch []ended) *collector.ExportTraceServiceRequest {
	if len(batch) == 0 {
		return &collector.ExportTraceServiceRequest{}
	}
	by := &resource.Resource{
		Attributes: []*common.KeyValue{word("service.name", t.o.Service), word("service.version", t.o.Version)}}
	if t.o.Instance != "" {
		by.Attributes = append(by.Attributes, word("service.instance.id", t.o.Instance))
	}
	spans := make([]*otlp.Span, len(batch))
	for i := range batch {
		spans[i] = batch[i].encode()
	}
	return &collector.ExportTraceServiceRequest{ResourceSpans: []*otlp.ResourceSpans{{
		Resource: by,
		ScopeSpans: []*otlp.ScopeSpans{
			{Scope: &common.InstrumentationScope{Name: "streamdp", Version: t.o.Version}, Spans: spans}},
	}}}
}

// sampled is the flag that marks a span as sent.
const sampled = 1

func (e *ended) encode() *otlp.Span {
	s := &otlp.Span{
		TraceId: e.trace[:], SpanId: e.id[:], Flags: sampled, Name: names[e.kind], Kind: kindOf[e.kind],
		StartTimeUnixNano: nanos(e.start), EndTimeUnixNano: max(nanos(e.start), nanos(e.end)),
	}
	if e.parent != [8]byte{} {
		s.ParentSpanId = e.parent[:]
	}
	s.Attributes = append(s.Attributes, word(keyStream, e.Stream), word(keyPartition, e.Partition),
		whole(keyEpoch, e.Epoch))
	if e.kind == Fetch {
		s.Attributes = append(s.Attributes, whole(keyInput, uint64(e.Input)))
	}
	if e.First > 0 {
		s.Attributes = append(s.Attributes, whole(keyStep, e.First))
	}
	if e.Last > e.First {
		s.Attributes = append(s.Attributes, whole(keyLast, e.Last))
	}
	if e.Failed != "" {
		s.Attributes = append(s.Attributes, word(keyError, e.Failed))
		s.Status = &otlp.Status{Code: otlp.Status_STATUS_CODE_ERROR}
	}
	return s
}

func nanos(t time.Time) uint64 { return uint64(max(0, t.UnixNano())) }

func word(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

func whole(key string, value uint64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(value)}}}
}
