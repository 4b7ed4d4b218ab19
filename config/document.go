package config

import (
	"errors"
	"strings"

	"github.com/BurntSushi/toml"
)

// document is a file, or several that are read as one. The TOML package parses it into maps; the schema says which
// keys are taken from them. The package could decode into structs, but it would match keys
// in any case, read 5 as 5 ns, and report faults without their lines.
type document struct {
	*positions
	files  []source
	tree   map[string]any
	masked map[string]string // values out of the environment, as the file writes them
	hidden []toml.Key        // their keys
	bad    map[string]bool   // keys that have a fault
	faults Faults

	streams []*Stream // by name
}

// parse reads TOML. If a text is not TOML, that is the only fault of its file, and of the others no
// more is read than whether they are.
func (d *document) parse(files []source) {
	d.files = files
	d.positions = &positions{written: map[string]int{}, implied: map[string]int{}}
	for i := 1; i < len(files); i++ {
		files[i].before = files[i-1].before + 1 + strings.Count(files[i-1].text, "\n")
	}
	for i := range files {
		f := &files[i]
		if tree, ok := d.decode(f); ok {
			here := scan(f.text)
			d.tree = d.merge(nil, d.tree, tree, here, f)
			d.positions.add(here, f.before)
		}
	}
}

// decode reads the tables of a file.
func (d *document) decode(f *source) (tree map[string]any, ok bool) {
	defer func() {
		if r := recover(); r != nil { // the parser panics where it meets a state it calls a bug
			d.fail(f, 1, "not TOML")
		}
	}()
	if _, err := toml.Decode(f.text, &tree); err != nil {
		line, message := 1, "cannot be read"
		if e, ok := errors.AsType[toml.ParseError](err); ok {
			// If a line ends too early, the parser reports the line after it.
			before := strings.TrimPrefix(f.text, "\xef\xbb\xbf")
			before = before[:min(max(e.Position.Start, 0), len(before))]
			line, message = 1+strings.Count(before, "\n"), harmless(e.Message)
		}
		d.fail(f, line, "not TOML: "+message)
		return nil, false
	}
	return tree, true
}

func (d *document) fail(f *source, line int, rule string) {
	d.faults = append(d.faults, &Fault{File: f.name, Line: line, Rule: rule})
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
	file, line := d.place(d.line(key, element))
	f := &Fault{File: file, Line: line, Key: key.String(), Rule: rule, Value: value}
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
