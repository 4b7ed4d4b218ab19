package config

import (
	"net/url"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// Trace is the table [trace]: where traces of the daemon's work go. No key of it is in a digest.
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

// URL returns where requests go: the endpoint, with the path of OTLP where it has none.
func (t *Trace) URL() string {
	u, err := url.Parse(t.Endpoint)
	if err == nil && strings.Trim(u.Path, "/") == "" {
		u.Path = "/v1/traces"
		return u.String()
	}
	return t.Endpoint
}

// isOTLP reports whether v is a URL that traces can be sent to. What a URL holds is shown in
// messages, so it has no place for a password.
func isOTLP(v any) bool {
	s, _ := v.(string)
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && !strings.Contains(s, "#")
}

// checkTrace finds what makes traces unsafe or impossible.
func (d *document) checkTrace(c *Config) {
	t, table := c.Trace, toml.Key{"trace"}
	if t == nil {
		return
	}
	if d.Sound(toml.Key{"http", "exposure"}) && c.HTTP.Exposure == "public" {
		d.Note(table, -1,
			"must not be there with http.exposure = \"public\": times of traces depend on records, as metrics "+
				"of class P do", nil)
	}
	if key := under(table, "endpoint"); t.TLS != nil && d.Sound(key) && !strings.HasPrefix(t.Endpoint, "https:") {
		d.Add(key, -1, "must begin with https: with [trace.tls]", t.Endpoint)
	}
	d.checkPair(t.TLS, under(table, "tls"))
}
