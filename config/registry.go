package config

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/streamdp/streamdp/internal/toml"
)

// Registry is the table [registry]: the schema registry.
type Registry struct {
	// URLs are addresses of the registry, tried in turn. Required.
	URLs []string `toml:"urls"`
	// Timeout is how long a request may take, 100 ms to 1 min. Default 5 s.
	Timeout time.Duration `toml:"timeout"`
	// TokenFile holds a bearer token. Empty: none.
	TokenFile string `toml:"token_file"`
	// BasicAuth holds user and password. Nil: no password is sent.
	BasicAuth *BasicAuth `toml:"basic_auth"`
	// TLS is the table [registry.tls]. Nil: certificates are checked against the system's authorities.
	TLS *TLS `toml:"tls"`
}

// InClear reports whether the credentials for the registry cross the network without encryption.
func (r *Registry) InClear() bool {
	return (r.TokenFile != "" || r.BasicAuth != nil) && slices.ContainsFunc(r.URLs, func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && u.Scheme == "http" && !Loopback(u.Hostname()+":0")
	})
}

// These are the codecs whose records have schemas.
const (
	codecAvro     = "avro"
	codecProtobuf = "protobuf"
	codecJSON     = "json-schema"
)

// Schemas reports whether the records have schemas.
func (in *Input) Schemas() bool {
	return slices.Contains([]string{codecAvro, codecProtobuf, codecJSON}, in.Codec)
}

// Looked reports whether the records' schemas are looked up in the registry.
func (in *Input) Looked() bool { return in.Schemas() && in.Framing == framed }

// Binary reports whether a record's value is not text.
func (in *Input) Binary() bool { return in.Schemas() && (in.Codec != codecJSON || in.Looked()) }

// SchemaSubjects returns the subjects of the registry that hold the schemas of the records.
func (in *Input) SchemaSubjects() []string {
	if len(in.Subjects) == 0 {
		return []string{in.Topic + "-value"}
	}
	return in.Subjects
}

// These are the values of input.framing.
const (
	framed = "confluent"
)

var registryURL = toml.MustBe("http or https, a host, and at most a path: `https://registry:8081`", func(v any) bool {
	u, err := url.Parse(v.(string))
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.RawQuery == "" &&
		!u.ForceQuery && u.Fragment == "" && u.Opaque == ""
})

var subject = toml.MustBe("1 to 512 characters, none of them a control character", func(v any) bool {
	s := v.(string)
	return s != "" && len(s) <= 512 && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
})

var protobufName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

var messageName = toml.MustBe("a name, with its package", func(v any) bool {
	s := v.(string)
	return s == "" || protobufName.MatchString(s)
})

// maxSubjects is the largest number of subjects that a stream may name.
const maxSubjects = 100

// checkRegistry checks the table [registry].
func (d *document) checkRegistry(c *Config) {
	r, key := c.Registry, toml.Key{"registry"}
	if r == nil {
		return
	}
	if urls := under(key, "urls"); d.Sound(urls) && d.Written(urls) != nil {
		if len(r.URLs) == 0 {
			d.Add(urls, -1, "must name at least one address", nil)
		}
		checkTwice(d, urls, r.URLs)
		for i, s := range r.URLs {
			if u, err := url.Parse(s); err == nil && u.User != nil {
				d.Add(urls, i, "must not contain a user or a password: they belong in [registry.basic_auth]", nil)
			}
		}
	}
	if token := under(key, "token_file"); r.BasicAuth != nil && d.Written(token) != nil && d.Sound(token) {
		d.Add(token, -1, "must be absent with [registry.basic_auth]: a request carries only one of them", nil)
	}
	d.checkPair(r.TLS, under(key, "tls"))
}

// checkSchemas checks the keys that say where a stream's schemas come from, and reads the file with the schema of all
// records.
func (d *document) checkSchemas(c *Config, s *Stream, key toml.Key) {
	in, at := &s.Input, func(name string) toml.Key { return under(key, "input", name) }
	if !d.Sound(at("codec")) || !d.Sound(at("framing")) {
		return
	}
	fault := func(name, rule string) {
		there := map[string]bool{"framing": in.Framing != framed, "subjects": len(in.Subjects) > 0,
			"schema_file": in.SchemaFile != "", "message": in.Message != ""}
		if there[name] && d.Sound(at(name)) {
			d.Add(at(name), -1, rule, nil)
		}
	}
	if !in.Schemas() {
		for _, name := range []string{"framing", "subjects", "schema_file", "message"} {
			fault(name, `is only for codecs with schemas: "avro", "protobuf" and "json-schema"`)
		}
		return
	}
	if in.Codec != codecProtobuf {
		fault("message", `is only for codec "protobuf"`)
	}
	if in.Looked() {
		fault("schema_file", `is only for framing "plain": with "confluent", schemas come from the registry`)
		if c.Registry == nil {
			d.Note(toml.Key{"registry"}, -1, "required, because records of ["+key.String()+"] name schemas in the "+
				"registry", nil)
		}
		if d.Sound(at("subjects")) {
			checkTwice(d, at("subjects"), in.Subjects)
			if len(in.Subjects) > maxSubjects {
				d.Add(at("subjects"), -1, fmt.Sprintf("must be at most %d", maxSubjects), len(in.Subjects))
			}
		}
		return
	}
	fault("subjects", `is only for framing "confluent": with "plain", schema_file is the schema of all records`)
	if !d.Sound(at("schema_file")) {
		return
	}
	if in.SchemaFile == "" {
		d.Add(at("schema_file"), -1, `required with framing "plain"`, nil)
		return
	}
	text, err := readSchema(in.SchemaFile)
	if err != nil {
		d.Add(at("schema_file"), -1, "cannot be read: "+err.Error(), nil)
		return
	}
	in.SchemaText = text
}

// readSchema reads the text of a schema.
func readSchema(path string) (string, error) {
	const most = 1 << 20
	// O_NONBLOCK: opening a pipe that has no writer must not hang.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", errors.New("it is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return "", err
	case len(text) == 0 || len(text) > most || !utf8.Valid(text):
		return "", fmt.Errorf("it must hold text in UTF-8, of at most %d MiB", most>>20)
	}
	return string(text), nil
}
