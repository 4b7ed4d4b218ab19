package config

import (
	"net/url"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// Trace is the table [trace]. It says where traces of the daemon's work are sent. None of its keys enters a digest.
type Trace struct {
	// Endpoint is the URL of a receiver of OTLP over HTTP. Required. See URL.
	Endpoint string `toml:"endpoint"`
	// HeadersFile holds headers for each request. Empty: none.
	HeadersFile string `toml:"headers_file"`
	// Sample is the share of traces that are sent, in (0, 1]. Default 1.
	Sample float64 `toml:"sample"`
	// Service names the service. Default "streamdp".
	Service string `toml:"service"`
	// TLS is the table [trace.tls]. Nil: certificates are checked against the system's authorities.
	TLS *TLS `toml:"tls"`
}

// URL returns the address of requests. It is the endpoint; if that has no path, OTLP's path is added.
func (t *Trace) URL() string {
	u, err := url.Parse(t.Endpoint)
	if err == nil && strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
		return u.String()
	}
	return t.Endpoint
}

// isOTLP reports whether v is a URL that can receive traces. The URL must not contain a password, because messages show
// it.
func isOTLP(v any) bool {
	s, _ := v.(string)
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && !strings.Contains(s, "#")
}

// checkTrace reports settings with which traces would be unsafe or impossible.
func (d *document) checkTrace(c *Config) {
	t, table := c.Trace, toml.Key{"trace"}
	if t == nil {
		return
	}
	if d.Sound(toml.Key{"http", "exposure"}) && c.HTTP.Exposure == "public" {
		d.Note(table, -1,
			"must be absent with http.exposure = \"public\": the times in traces depend on records, as metrics "+
				"of class P do", nil)
	}
	if key := under(table, "endpoint"); t.TLS != nil && d.Sound(key) && !strings.HasPrefix(t.Endpoint, "https:") {
		d.Add(key, -1, "must begin with https: with [trace.tls]", t.Endpoint)
	}
	d.checkPair(t.TLS, under(table, "tls"))
}
