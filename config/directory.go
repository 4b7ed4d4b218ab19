package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// source is a file of a configuration.
type source struct {
	name   string
	text   string
	before int // lines of the files before it
}

// sourcesAt reads the file at path or, where that is a directory, the files in it that Load takes.
func sourcesAt(path string) (files []source, err error) {
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
		files = append(files, source{name: name, text: string(data)})
	}
	return files, nil
}

// Text returns what Load reads at path: the text of a file, or those of a directory's files one after the
// other.
//
// Errors: a file could not be read.
func Text(path string) ([]byte, error) {
	files, err := sourcesAt(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var all []byte
	for _, f := range files {
		all = append(all, f.text...)
	}
	return all, nil
}

// place returns the file of a line, and its number there.
func (d *document) place(line int) (file string, number int) {
	f := d.files[0]
	for _, next := range d.files[1:] {
		if next.before < line {
			f = next
		}
	}
	return f.name, line - f.before
}

// number returns the place of a file among those that are read.
func (d *document) number(file string) int {
	return slices.IndexFunc(d.files, func(f source) bool { return f.name == file })
}

// merge adds the tables of a file to those of the files before it. Both may have a table, and each
// some of its keys. here has the lines of the file.
func (d *document) merge(above toml.Key, into, tree map[string]any, here *positions, f *source) map[string]any {
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
			file, line := d.place(d.line(key, -1))
			d.faults = append(d.faults, &Fault{File: f.name, Line: here.line(key, -1), Key: key.String(), Rule: fmt.Sprintf("stands in %s:%d too", file, line)})
		}
	}
	return into
}

// add adds the positions of a file that follows so many lines. What files before it mention stays where
// they do.
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

// keepMasked notes which keys hold values of environment variables, which nothing prints, by the names that
// Difference has for them.
func (d *document) keepMasked(c *Config) {
	for _, key := range d.hidden {
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
