package config

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// Canonical returns the canonical configuration of the task of one partition: the keys of the stream's table that the
// guarantee of an epoch depends on. It is JSON without blanks, with sorted keys and with defaults filled in. An epoch
// can continue under another configuration if and only if the two texts are equal.
//
// The text differs from the file in these points:
//   - input.partition is the task's own partition, so that the operator may add others;
//   - for a merged stream it is the list of the stream's partitions, and "all" while they are not
//     known yet;
//   - on_horizon is "continue" or "end", because an epoch depends on nothing else of it;
//   - the keys of [stream.NAME.sgd.amb] are in sgd itself, where earlier versions had them;
//   - a column's table has only what differs from the default, which is a plain number at the path that
//     the column's name gives; but a path with an index is always there;
//   - the keys that docs/config.md marks ° are absent;
//   - input.schema_sha256 is the SHA-256 of the text of input.schema_file, if there is one;
//   - a key that the first version did not have is absent while it has its default.
func (s *Stream) Canonical(partition int) []byte {
	t := root().At("stream", "NAME").Canonical(reflect.ValueOf(s).Elem())
	in := t["input"].(map[string]any)
	s.Input.canonicalColumns(in)
	switch in["partition"] = partition; {
	case s.Merge && s.Input.All():
		in["partition"] = "all"
	case s.Merge:
		in["partition"] = s.Input.Partitions
	}
	if s.Input.SchemaText != "" {
		in["schema_sha256"] = fmt.Sprintf("%x", sha256.Sum256([]byte(s.Input.SchemaText)))
	}
	t["on_horizon"] = "end"
	if s.OnHorizon == "continue" {
		t["on_horizon"] = "continue"
	}
	return toml.JSON(t)
}

// Digest returns the digest of one task's configuration. The keys of the task's noise depend on it. versions holds the
// versions of the mechanism and of the noise format.
func (s *Stream) Digest(partition int, versions map[string]string) [32]byte {
	return DigestOf(s.Canonical(partition), versions)
}

// DigestOf returns the digest for a canonical configuration, such as a manifest holds. The digest is the SHA-256 of
// {"stream":canonical,"versions":{…}}.
func DigestOf(canonical []byte, versions map[string]string) [32]byte {
	if versions == nil {
		versions = map[string]string{}
	}
	h := sha256.New()
	h.Write([]byte(`{"stream":`))
	h.Write(canonical)
	h.Write([]byte(`,"versions":`))
	h.Write(toml.JSON(versions))
	h.Write([]byte(`}`))
	return [32]byte(h.Sum(nil))
}

// Changes lists the keys in which the canonical configuration of a task differs from old, in the form of [Diff]. If a
// key holds the value of an environment variable, the line says only that it changed.
func (s *Stream) Changes(old []byte, partition int) []string {
	lines := Diff(old, s.Canonical(partition))
	for i, line := range lines {
		for key := range s.masked {
			if strings.HasPrefix(line, key+": ") {
				lines[i] = key + ": changed"
			}
		}
	}
	return lines
}

// Diff lists the keys in which two canonical configurations differ, as "key: old → new", sorted by key. The value of a
// key that is missing in one of them is shown as "absent".
func Diff(old, new []byte) (lines []string) {
	before, errBefore := toml.Leaves(old)
	after, errAfter := toml.Leaves(new)
	switch {
	case errBefore != nil:
		return []string{"the old configuration is not JSON"}
	case errAfter != nil:
		return []string{"the new configuration is not JSON"}
	}
	for _, d := range before.Differences(after) {
		lines = append(lines, d.String())
	}
	return lines
}
