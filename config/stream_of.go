package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// StreamOf returns the stream that a canonical configuration from a manifest describes. It has the keys that
// [Stream.Canonical] writes, and defaults for all others. Its limits are its own ε and δ.
//
// Errors: the text is not the canonical configuration of a stream in this version.
func StreamOf(name string, text []byte) (*Stream, error) {
	tree, err := tableOf(text)
	if err != nil {
		return nil, err
	}
	n, key := root().At("stream", "NAME"), toml.Key{"stream", name}
	spread := func(n *toml.Node, t map[string]any) {
		for _, c := range n.Children {
			if !c.Has(toml.Flat) {
				continue
			}
			own := map[string]any{}
			for _, k := range c.Children {
				if v, ok := t[k.Name]; ok {
					own[k.Name] = v
					delete(t, k.Name)
				}
			}
			t[c.Name] = own
		}
	}
	for _, c := range n.Children {
		if t, ok := tree[c.Name].(map[string]any); ok && c.Kind == toml.Table {
			spread(c, t)
		}
	}
	if tree["on_horizon"] == "end" {
		delete(tree, "on_horizon")
	}
	if tree["step"] == int64(0) {
		delete(tree, "step")
	}
	tree["output"] = map[string]any{"topic": "none"}
	if p, ok := tree["privacy"].(map[string]any); ok {
		p["limit_epsilon"], p["limit_delta"] = p["epsilon"], p["delta"]
	}
	d := &document{toml.Of(name, map[string]any{"stream": map[string]any{name: tree}})}
	s := &Stream{Name: name}
	d.ReadTable(n, key, tree, reflect.ValueOf(s).Elem())
	if d.checkMechanism(s, key); len(d.Faults) > 0 {
		return nil, fmt.Errorf("the epoch's configuration: %w", d.Faults)
	}
	if s.Gradients() { // gradients have no rows; a file's stream is cleared in the same way
		s.clearRows()
	}
	if d.checkEstimator(s, key); len(d.Faults) > 0 {
		return nil, fmt.Errorf("the epoch's configuration: %w", d.Faults)
	}
	if len(s.Input.Partitions) != 1 && !s.Merge || s.Input.All() ||
		!bytes.Equal(s.Canonical(s.Input.Partitions[0]), text) {
		return nil, fmt.Errorf("this version cannot read the epoch's configuration")
	}
	return s, nil
}

// tableOf converts a JSON object to the form in which the TOML package returns tables.
func tableOf(text []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var t map[string]any
	if err := d.Decode(&t); err != nil || t == nil {
		return nil, fmt.Errorf("the epoch's configuration is not a table")
	}
	return plainTOML(t).(map[string]any), nil
}

func plainTOML(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = plainTOML(v[k])
		}
	case []any:
		for i := range v {
			v[i] = plainTOML(v[i])
		}
	case string:
		return strings.ReplaceAll(v, "${", "$${") // escapes a literal "${"
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if x, err := v.Float64(); err == nil {
			return x
		}
	}
	return v
}
