package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// schemas returns orders with a table [registry], and with this text instead of its codec.
func schemas(codec string) string {
	return strings.Replace(orders, `codec = "json"`, codec, 1) + "\n[registry]\nurls = [\"https://registry:8081\"]\n"
}

// TestSchemasFaults: each missing source of a schema is reported as a fault of its own key.
func TestSchemasFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "orders.avsc")
	if err := os.WriteFile(file, []byte(`{"type":"record"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	registry := "[registry]\nurls = [\"https://registry:8081\"]\n"
	for _, c := range []struct{ text, fault string }{
		{strings.Replace(orders, `"json"`, `"avro"`, 1),
			"registry: required, because records of [stream.orders] name schemas in the registry"},
		{schemas(`codec = "json", framing = "plain"`),
			`stream.orders.input.framing: is only for codecs with schemas: "avro", "protobuf" and "json-schema"`},
		{schemas(`codec = "csv", subjects = ["a"]`), `stream.orders.input.subjects: is only for codecs with schemas`},
		{schemas(`codec = "avro", framing = "none"`),
			`stream.orders.input.framing: must be "confluent" or "plain" ("none")`},
		{schemas(`codec = "avro", message = "a.B"`), `stream.orders.input.message: is only for codec "protobuf"`},
		{schemas(`codec = "protobuf", message = "a..B"`),
			`stream.orders.input.message: must be a name, with its package ("a..B")`},
		{schemas(`codec = "avro", schema_file = "` + file + `"`),
			`stream.orders.input.schema_file: is only for framing "plain"`},
		{schemas(`codec = "avro", framing = "plain"`),
			`stream.orders.input.schema_file: required with framing "plain"`},
		{schemas(`codec = "avro", framing = "plain", schema_file = "/nowhere/at all"`),
			`stream.orders.input.schema_file: cannot be read: open /nowhere/at all: no such file or directory`},
		{schemas(`codec = "avro", framing = "plain", schema_file = "/dev/null"`),
			`stream.orders.input.schema_file: cannot be read: it is not a regular file`},
		{schemas(`codec = "avro", framing = "plain", subjects = ["a"], schema_file = "` + file + `"`),
			`stream.orders.input.subjects: is only for framing "confluent"`},
		{schemas(`codec = "avro", subjects = ["a", "a"]`),
			`stream.orders.input.subjects: must not be repeated ("a")`},
		{schemas(`codec = "avro", subjects = [""]`), `stream.orders.input.subjects: must not be empty`},
		{strings.Replace(schemas(`codec = "json"`), `["https://registry:8081"]`, `["registry:8081"]`, 1),
			"registry.urls: must be http or https, a host, and at most a path: `https://registry:8081` " +
				"(\"registry:8081\")"},
		{strings.Replace(schemas(`codec = "json"`), `["https://registry:8081"]`, `["http://a/?key=secret"]`, 1),
			"registry.urls: must be http or https"},
		{strings.Replace(schemas(`codec = "json"`), `["https://registry:8081"]`, `[]`, 1),
			"registry.urls: must name at least one address"},
		{orders + "\n[registry]\n", "registry.urls: required"},
		{schemas(`codec = "json"`) + "timeout = \"90ms\"\n", `registry.timeout: must be "100ms" to "1m" ("90ms")`},
		{schemas(`codec = "json"`) +
			"token_file = \"/t\"\n[registry.basic_auth]\nusername = \"u\"\npassword_file = \"/p\"\n",
			"registry.token_file: must be absent with [registry.basic_auth]"},
		{schemas(`codec = "json"`) + "[registry.tls]\ncert_file = \"/c\"\n",
			"registry.tls.cert_file: needs key_file too"},
		{orders + registry + registry, "registry"},
	} {
		_, err := Parse("f.toml", []byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s\nin\n%s", err, c.text)
			t.Errorf("not there: %s", c.fault)
		}
	}
	_, err := Parse("f.toml", []byte(strings.Replace(schemas(`codec = "json"`), "https://", "https://me:secret@", 1)))
	if err == nil || !strings.Contains(err.Error(), "must not contain a user or a password") ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("a password in a URL: %v", err)
	}
}

// TestSchemasDigest: settings that determine rows are in the digest, but the address of the registry is not.
func TestSchemasDigest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "orders.avsc")
	const text = `{"type":"record"}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	canonical := func(text string) string { return string(parse(t, text).Streams[0].Canonical(0)) }
	json := canonical(orders)
	avro := canonical(schemas(`codec = "avro"`))
	if want := strings.Replace(json, `"codec":"json"`, `"codec":"avro"`, 1); avro != want {
		t.Errorf("avro is\n%s\nwant\n%s", avro, want)
	}
	if got := canonical(schemas(`codec = "avro", subjects = ["a", "b"]`)); got != strings.Replace(avro, `"topic"`,
		`"subjects":["a","b"],"topic"`, 1) {
		t.Errorf("with subjects the digest belongs to\n%s", got)
	}
	sum := sha256.Sum256([]byte(text))
	plain := canonical(schemas(`codec = "avro", framing = "plain", schema_file = "` + file + `"`))
	if !strings.Contains(plain, `"framing":"plain"`) ||
		!strings.Contains(plain, `"schema_sha256":"`+hex.EncodeToString(sum[:])+`"`) || strings.Contains(plain, file) {
		t.Errorf("plain is\n%s", plain)
	}
	if got := canonical(schemas(`codec = "protobuf", message = "a.B"`)); !strings.Contains(got, `"message":"a.B"`) {
		t.Errorf("a message is not in\n%s", got)
	}
}

// TestSchemaSubjects: the subject follows from the topic, unless the configuration names other subjects.
func TestSchemaSubjects(t *testing.T) {
	for codec, want := range map[string][]string{`codec = "avro"`: {"orders-value"},
		`codec = "avro", subjects = ["b", "a"]`: {"b", "a"}} {
		in := &parse(t, schemas(codec)).Streams[0].Input
		if got := in.SchemaSubjects(); !slices.Equal(got, want) || !in.Looked() {
			t.Errorf("%s: %q", codec, got)
		}
	}
	if in := parse(t, orders).Streams[0].Input; in.Schemas() || in.Looked() {
		t.Error("json has schemas")
	}
}

// TestInClear: a token or a password is sent in the clear over http, unless it stays on this machine.
func TestInClear(t *testing.T) {
	for url, want := range map[string]bool{"http://registry:8081": true, "https://registry": false,
		"http://127.0.0.1:8081": false, "http://localhost": false} {
		if r := (&Registry{URLs: []string{url}, TokenFile: "secret"}); r.InClear() != want {
			t.Errorf("%s in the clear: %v", url, !want)
		}
	}
}
