package config

import (
	"slices"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// document holds the parsed configuration files. Its methods report faults that concern several keys.
type document struct{ *toml.Document }

// Fault is a violated rule and its place in the file.
type Fault = toml.Fault

// Faults are all faults of a configuration, in the order of its lines.
type Faults = toml.Faults

// refuse adds a fault for each of the named keys of a table that the file sets.
func (d *document) refuse(table toml.Key, rule string, names ...string) {
	for _, name := range names {
		if key := under(table, name); d.Written(key) != nil {
			d.Add(key, -1, rule, nil)
		}
	}
}

// keepMasked records the keys whose values come from environment variables, under the names that Difference uses.
// Nothing prints the values of these keys.
func (d *document) keepMasked(c *Config) {
	for _, key := range d.Hidden {
		if len(key) < 3 || key[0] != "stream" {
			c.masked = with(c.masked, strings.Join(key, "."))
			continue
		}
		for _, s := range slices.Concat(c.Streams, c.Patterns) {
			if s.Name == key[1] {
				s.masked = with(s.masked, strings.Join(key[2:], "."))
			}
		}
	}
}

func with(all map[string]bool, key string) map[string]bool {
	if all == nil {
		all = map[string]bool{}
	}
	all[key] = true
	return all
}
