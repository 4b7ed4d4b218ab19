package toml

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	burnt "github.com/BurntSushi/toml"
)

// Document is the content of a file, or of several files that are read as one. The TOML package parses it into maps; a
// tree of rows says which keys are read from the maps. That package could decode into structs directly, but it would
// ignore the case of keys, read 5 as 5 ns, and report faults without their lines.
type Document struct {
	*positions
	files  []Source
	masked map[string]string // values that contain environment variables, as written in the file
	bad    map[string]bool   // keys with a fault

	// Tree is the table of all content.
	Tree map[string]any
	// Hidden are the keys whose values contain environment variables. Nothing prints these values.
	Hidden []Key
	// Faults are the faults found so far, in the order in which they were found.
	Faults Faults
}

// Parse reads files as one document. It records a fault for a text that is not TOML, and for a key that is in two
// files.
func Parse(files []Source) *Document {
	d := Of("", nil)
	d.parse(files)
	return d
}

// Of returns a document with the content of tree. It has no line numbers. Its faults give name as the file.
func Of(name string, tree map[string]any) *Document {
	return &Document{
		positions: scan(""), files: []Source{{Name: name}}, Tree: tree, masked: map[string]string{},
		bad: map[string]bool{},
	}
}

// Err returns the faults in the order of the lines, nil if there are none.
func (d *Document) Err() error {
	if len(d.Faults) == 0 {
		return nil
	}
	slices.SortStableFunc(d.Faults, func(a, b *Fault) int {
		return cmp.Or(d.number(a.File)-d.number(b.File), cmp.Compare(a.Line, b.Line))
	})
	// A one-line list may contain the same faulty element twice. The fault is reported only once.
	return slices.CompactFunc(d.Faults, func(a, b *Fault) bool { return a.Error() == b.Error() })
}

// parse reads TOML. If a file is not TOML, that is its only reported fault, and other files are checked only for being
// TOML.
func (d *Document) parse(files []Source) {
	d.files = files
	for i := 1; i < len(files); i++ {
		files[i].before = files[i-1].before + 1 + strings.Count(files[i-1].Text, "\n")
	}
	for i := range files {
		f := &files[i]
		if tree, ok := d.decode(f); ok {
			here := scan(f.Text)
			d.Tree = d.merge(nil, d.Tree, tree, here, f)
			d.positions.add(here, f.before)
		}
	}
}

// decode parses the text of a file into tables.
func (d *Document) decode(f *Source) (tree map[string]any, ok bool) {
	defer func() {
		if r := recover(); r != nil { // the parser panics in states that should be impossible
			d.fail(f, 1, "not TOML")
		}
	}()
	if _, err := burnt.Decode(f.Text, &tree); err != nil {
		line, message := 1, "cannot be read"
		if e, ok := errors.AsType[burnt.ParseError](err); ok {
			// If a line ends too early, the parser reports the next line instead. The code below corrects this.
			before := strings.TrimPrefix(f.Text, "\xef\xbb\xbf")
			before = before[:min(max(e.Position.Start, 0), len(before))]
			line, message = 1+strings.Count(before, "\n"), harmless(e.Message)
		}
		d.fail(f, line, "not TOML: "+message)
		return nil, false
	}
	return tree, true
}

func (d *Document) fail(f *Source, line int, rule string) {
	d.Faults = append(d.Faults, &Fault{File: f.Name, Line: line, Rule: rule})
}

// Add records a fault of a key, or of an element of its list. Later checks skip the key.
func (d *Document) Add(key Key, element int, rule string, value any) *Fault {
	d.bad[key.String()] = true
	return d.Note(key, element, rule, value)
}

// Note records a fault like Add, but for a table as a whole: later checks still look at the keys in the table.
func (d *Document) Note(key Key, element int, rule string, value any) *Fault {
	if _, ok := value.(string); ok {
		if source, ok := d.masked[place(key, element)]; ok {
			value = source
		}
	}
	file, line := d.place(d.Line(key, element))
	f := &Fault{File: file, Line: line, Key: key.String(), Rule: rule, Value: value}
	d.Faults = append(d.Faults, f)
	return f
}

// Line returns the line of the key or, if the files do not have it, of the nearest table around it, counted over all
// files. element ≥ 0 asks for the line of that element of a list.
func (d *Document) Line(key Key, element int) int { return d.positions.line(key, element) }

// Spoil makes later checks skip the key, as if it had a fault.
func (d *Document) Spoil(key Key) { d.bad[key.String()] = true }

// SoundBelow reports whether all keys in the table are without a fault.
func (d *Document) SoundBelow(table Key) bool {
	for k := range d.bad {
		if strings.HasPrefix(k, table.String()+".") {
			return false
		}
	}
	return true
}

// Sound reports whether neither the key nor a table around it has a fault. Only then may later checks use the key's
// value.
func (d *Document) Sound(key Key) bool {
	for n := 1; n <= len(key); n++ {
		if d.bad[key[:n].String()] {
			return false
		}
	}
	return true
}

// Written returns the value that the file gives the key, nil if the key is not in the file.
func (d *Document) Written(key Key) any {
	var v any = d.Tree
	for _, name := range key {
		t, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = t[name]
	}
	return v
}
