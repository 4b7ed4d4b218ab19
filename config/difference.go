package config

import (
	"maps"
	"reflect"

	"github.com/streamdp/streamdp/internal/toml"
)

// Difference is a key that has different values in two configurations. Its name is dotted; for a key of a stream it
// omits stream.NAME. Its values are empty if they are the path of a file, or hold the value of an environment variable
// (it may be a secret). For most keys of a stream, the default value is shown as "absent".
type Difference = toml.Difference

// Differences lists the keys outside of [stream.NAME] in which two configurations differ, sorted.
func Differences(old, new *Config) []Difference {
	return old.settings().Differences(new.settings())
}

func (c *Config) settings() toml.Settings {
	all := root().Settings(reflect.ValueOf(c).Elem())
	all.Hide(c.masked)
	return all
}

// Differences lists the keys in which two tables of a stream differ, sorted. It covers keys that the digest includes
// and keys that it does not. An empty list means that the two tables are equal in everything that a file can set.
func (s *Stream) Differences(other *Stream) []Difference {
	return s.settings().Differences(other.settings())
}

// settings returns the keys of a stream by their dotted names.
func (s *Stream) settings() toml.Settings {
	all := root().At("stream", "NAME").Settings(reflect.ValueOf(s).Elem())
	inside, err := toml.Leaves(s.Canonical(s.Input.First()))
	if err != nil {
		panic("config: " + err.Error()) // unreachable: it was marshalled
	}
	maps.Copy(all, inside)
	// The canonical text shortens the values of these keys to the part that matters to an epoch. settings needs the
	// full values.
	partitions := toml.JSON(s.Input.Partitions)
	if s.Input.All() {
		partitions = []byte(`"all"`)
	}
	all["on_horizon"] = toml.Setting{Text: string(toml.JSON(s.OnHorizon))}
	all["input.partition"] = toml.Setting{Text: string(partitions)}
	all.Hide(s.masked)
	return all
}
