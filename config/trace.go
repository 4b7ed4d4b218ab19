package config

import (
	"net/url"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// Trace is the table [trace]: where traces of the daemon's work are sent. No key of it is in a digest.
type Trace struct {
	// Endpoint is the URL of a receiver of OTLP over HTTP. Required. See URL.
	Endpoint string `toml:"endpoint"`
	// HeadersFile holds headers for each request. Empty: none.
	HeadersFile string `toml:"headers_file"`
	// Sample is the share of traces that are sent, in (0, 1]. Default 1.
	Sample float64 `toml:"sample"`
	// Service names the service. Default "streamdp".
	Service string `toml:"service"`
	// TLS is the table [trace.tls]. Nil: the system's authorities.
	TLS *TLS `toml:"tls"`
}

// URL returns the address of requests: the endpoint, with OTLP's path if it has none.
func (t *Trace) URL() string {
	u, err := url.Parse(t.Endpoint)
	if err == nil && strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
		return u.String()
	}
	return t.Endpoint
}

// isOTLP reports whether v is a URL that traces can be sent to. Messages show URLs, so it may not contain a password.
func isOTLP(v any) bool {
	s, _ := v.(string)
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && !strings.Contains(s, "#")
}

// checkTrace finds settings with which traces would be unsafe or impossible.
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
