package config

import (
	"maps"
	"reflect"

	"github.com/streamdp/streamdp/internal/toml"
)

// Difference is a key that has different values in two configurations. Its name is dotted; of a stream, without
// stream.NAME. Its values are empty for the path of a file and for what holds the value of an environment variable,
// which may be a secret. Most keys of a stream that have their default are "absent".
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

// Differences lists the keys in which two tables of a stream differ, sorted: those that an epoch depends on, and
// those outside of its digest. Without any, the two are the same in all that a file can say of them.
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
	// Of these the text has what matters to an epoch alone.
	partitions := toml.JSON(s.Input.Partitions)
	if s.Input.All() {
		partitions = []byte(`"all"`)
	}
	all["on_horizon"] = toml.Setting{Text: string(toml.JSON(s.OnHorizon))}
	all["input.partition"] = toml.Setting{Text: string(partitions)}
	all.Hide(s.masked)
	return all
}
