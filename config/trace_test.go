package config

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// traced returns the example with a table [trace] whose header is line 6.
func traced(lines string) string {
	return strings.Replace(orders, "[http]", "[trace]\n"+lines+"\n[http]", 1)
}

func TestTraceTable(t *testing.T) {
	c := parse(t, traced(`endpoint = "http://127.0.0.1:4318"`))
	if want := (Trace{Endpoint: "http://127.0.0.1:4318", Sample: 1, Service: "streamdp"}); *c.Trace != want {
		t.Errorf("%+v", *c.Trace)
	}
	alone := parse(t, orders)
	if alone.Trace != nil {
		t.Error("the example has no [trace], but Parse returned one")
	}
	if !bytes.Equal(alone.Streams[0].Canonical(0), c.Streams[0].Canonical(0)) {
		t.Error("[trace] is in the digest")
	}
	for endpoint, want := range map[string]string{
		"http://127.0.0.1:4318":      "http://127.0.0.1:4318/v1/traces",
		"https://collector/":         "https://collector/v1/traces",
		"https://[::1]:1/otlp/x":     "https://[::1]:1/otlp/x",
		"http://c:4318/v1/traces":    "http://c:4318/v1/traces",
		"http://c:4318/api/v2/spans": "http://c:4318/api/v2/spans",
	} {
		if got := parse(t, traced("endpoint = \""+endpoint+"\"")).Trace.URL(); got != want {
			t.Errorf("%s: %s", endpoint, got)
		}
	}
}

func TestTraceFaults(t *testing.T) {
	f := func(src string, want ...string) {
		t.Helper()
		if got := faults(t, src); !slices.Equal(got, want) {
			t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}
	f(traced(""), `6: trace.endpoint: required`)
	const rule = `must be a URL such as "http://127.0.0.1:4318", without user, query and fragment`
	for _, endpoint := range []string{"127.0.0.1:4318", "grpc://c:4317", "http://", "http://u:p@c", "http://c?key=1",
		"http://c?", "http://c#x", "http://c#", "http://c:x"} {
		got := faults(t, traced("endpoint = \""+endpoint+"\""))
		if len(got) != 1 || !strings.HasPrefix(got[0], "7: trace.endpoint: "+rule) {
			t.Errorf("%s: %v", endpoint, got)
		}
	}
	const plain = "endpoint = \"http://c\"\n"
	for _, sample := range []string{"0", "-0.5", "1.01"} {
		if got := faults(t, traced(plain+"sample = "+sample)); len(got) != 1 ||
			!strings.HasPrefix(got[0], "8: trace.sample: must be in (0, 1]") {
			t.Errorf("%s: %v", sample, got)
		}
	}
	f(traced(plain+"service = \"\"\nheaders_file = \"\""), `8: trace.service: must not be empty`,
		`9: trace.headers_file: must not be empty`)
	f(traced(plain+"tls.ca_file = \"c\""), `7: trace.endpoint: must begin with https: with [trace.tls] ("http://c")`)
	f(traced("endpoint = \"https://c\"\ntls.cert_file = \"c\""), `8: trace.tls.cert_file: needs key_file too`)
	// Traces depend on records, so they cannot be combined with a public listener.
	f(strings.Replace(traced(plain), `exposure = "operator"`, `exposure = "public"`, 1),
		`6: trace: must be absent with http.exposure = "public": the times in traces depend on records, as metrics of class P do`)
}
