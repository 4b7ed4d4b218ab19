package config

import (
	"maps"
	"reflect"
	"regexp"
	"slices"

	"github.com/streamdp/streamdp/internal/toml"
)

var streamName = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// readStreams reads the tables [stream.NAME] into the Config dst. n is their row of the schema.
func readStreams(d *toml.Document, n *toml.Node, key toml.Key, v any, dst reflect.Value) {
	c := dst.Addr().Interface().(*Config)
	t, ok := v.(map[string]any)
	if v != nil && !ok {
		d.Add(key, -1, "must be a table", toml.Scalar(v))
		return
	}
	if len(t) == 0 {
		d.Add(key, -1, "at least one [stream.NAME] is required", nil)
	}
	for _, name := range slices.Sorted(maps.Keys(t)) {
		here := append(key[:len(key):len(key)], name)
		if !streamName.MatchString(name) {
			d.Note(here, -1, "the name of a stream must be 1 to 63 of a-z, 0-9, _ and -", nil)
		}
		content, ok := t[name].(map[string]any)
		if !ok {
			d.Add(here, -1, "must be a table", toml.Scalar(t[name]))
			continue
		}
		s := &Stream{Name: name}
		d.ReadTable(n, here, content, reflect.ValueOf(s).Elem())
		c.Streams = append(c.Streams, s)
	}
}
