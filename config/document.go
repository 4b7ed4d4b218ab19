package config

import (
	"errors"
	"strings"

	"github.com/BurntSushi/toml"
)

// document is a file being read. The TOML package parses it into maps; the schema says which
// keys are taken from them. The package could decode into structs, but it would match keys
// in any case, read 5 as 5 ns, and report faults without their lines.
type document struct {
	*positions
	name   string
	tree   map[string]any
	masked map[string]string // values out of the environment, as the file writes them
	bad    map[string]bool   // keys that have a fault
	faults Faults

	streams []*Stream // by name
}

// parse reads TOML. If the text is not TOML, that is the only fault of the file.
func (d *document) parse(data []byte) {
	defer func() {
		if r := recover(); r != nil { // the parser panics where it meets a state it calls a bug
			d.fail(1, "not TOML")
		}
	}()
	if _, err := toml.Decode(string(data), &d.tree); err != nil {
		line, message := 1, "cannot be read"
		if e, ok := errors.AsType[toml.ParseError](err); ok {
			// If a line ends too early, the parser reports the line after it.
			before := strings.TrimPrefix(string(data), "\xef\xbb\xbf")
			before = before[:min(max(e.Position.Start, 0), len(before))]
			line, message = 1+strings.Count(before, "\n"), harmless(e.Message)
		}
		d.fail(line, "not TOML: "+message)
		return
	}
	d.positions = scan(string(data))
}

func (d *document) fail(line int, rule string) {
	d.faults = append(d.faults, &Fault{File: d.name, Line: line, Rule: rule})
}

// add records a fault of a key, or of an element of its list. Later checks skip the key.
func (d *document) add(key toml.Key, element int, rule string, value any) *Fault {
	d.bad[key.String()] = true
	return d.note(key, element, rule, value)
}

// note records a fault as add does. It is for faults of a table as a whole: the keys in the
// table are still checked.
func (d *document) note(key toml.Key, element int, rule string, value any) *Fault {
	if _, ok := value.(string); ok {
		if source, ok := d.masked[place(key, element)]; ok {
			value = source
		}
	}
	f := &Fault{File: d.name, Line: d.line(key, element), Key: key.String(), Rule: rule, Value: value}
	d.faults = append(d.faults, f)
	return f
}

// sound reports whether neither the key nor a table around it has a fault. Only then can
// later checks use the key's value.
func (d *document) sound(key toml.Key) bool {
	for n := 1; n <= len(key); n++ {
		if d.bad[key[:n].String()] {
			return false
		}
	}
	return true
}

// written returns what the file says for the key, nil if the key is not in the file.
func (d *document) written(key toml.Key) any {
	var v any = d.tree
	for _, name := range key {
		t, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = t[name]
	}
	return v
}
