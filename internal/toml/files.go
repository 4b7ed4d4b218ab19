package toml

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is a file, or a text that is read like a file.
type Source struct {
	Name   string
	Text   string
	before int // number of lines in the files before it
}

// Sources reads the file at path or, if path is a directory, its files whose names end in .toml and do not begin with a
// dot, in the order of their names.
func Sources(path string) (files []Source, err error) {
	names := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		names = nil
		for _, e := range entries {
			if name := e.Name(); !e.IsDir() && strings.HasSuffix(name, ".toml") && !strings.HasPrefix(name, ".") {
				names = append(names, filepath.Join(path, name))
			}
		}
		if len(names) == 0 {
			return nil, fmt.Errorf("directory %s has no file whose name ends in .toml", path)
		}
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files = append(files, Source{Name: name, Text: string(data)})
	}
	return files, nil
}

// place converts a line number over all files into the name of the file and the line number in it.
func (d *Document) place(line int) (file string, number int) {
	f := d.files[0]
	for _, next := range d.files[1:] {
		if next.before < line {
			f = next
		}
	}
	return f.Name, line - f.before
}

// number returns the index of a file.
func (d *Document) number(file string) int {
	return slices.IndexFunc(d.files, func(f Source) bool { return f.Name == file })
}

// merge adds the tables of a file to those of the earlier files. Two files may have the same table, each with some of
// its keys. `here` holds the line numbers of f.
func (d *Document) merge(above Key, into, tree map[string]any, here *positions, f *Source) map[string]any {
	if into == nil {
		return tree
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		key := append(above[:len(above):len(above)], name)
		was, there := into[name]
		a, isTable := was.(map[string]any)
		b, bothAre := tree[name].(map[string]any)
		switch {
		case !there:
			into[name] = tree[name]
		case isTable && bothAre:
			d.merge(key, a, b, here, f)
		default:
			file, line := d.place(d.Line(key, -1))
			d.Faults = append(d.Faults,
				&Fault{File: f.Name, Line: here.line(key, -1), Key: key.String(),
					Rule: fmt.Sprintf("is also set in %s:%d", file, line)})
		}
	}
	return into
}

// add adds the positions of a file. before is the number of lines in the files before it. Keys that earlier files
// mention keep their positions.
func (p *positions) add(file *positions, before int) {
	p.order = append(p.order, file.order...)
	for name, line := range file.written {
		if p.written[name] == 0 {
			p.written[name] = before + line
		}
	}
	for name, line := range file.implied {
		if p.implied[name] == 0 {
			p.implied[name] = before + line
		}
	}
}
