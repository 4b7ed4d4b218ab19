package config

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
)

// former are keys of earlier versions. They accepted their default alone, because the
// program could do nothing else.
var former = []string{"http.pprof"}

// unknown records a fault for a key that table n does not have, and guesses which was meant.
func (d *document) unknown(n *node, key toml.Key) {
	name := key[len(key)-1]
	rule := "unknown key"
	hint := ""
	path := name
	if n.path != "" {
		path = n.path + "." + name
	}
	if into := n.movedInto(name); into != "" {
		hint = "moved to [" + append(key[:len(key)-1:len(key)-1], into).String() + "]"
	} else if slices.Contains(former, path) {
		hint = "leave it out: this version has nothing that it would turn on"
	} else if n.has(flat) && n.parent.child(name) != nil {
		hint = "it belongs in [" + key[:len(key)-2].String() + "]"
	} else if near := nearest(name, n); near != "" {
		hint = "did you mean " + near + "?"
		if near == strings.ToLower(name) {
			rule = "keys are lower case"
		}
	} else if home := homeOf(name, n, key); home != "" {
		hint = "it belongs in [" + home + "]"
	}
	d.add(key, -1, rule, nil).Hint = hint
}

// movedInto returns the flat table of n that has the named key, "" if none has. In earlier
// versions such a key was in n itself.
func (n *node) movedInto(name string) string {
	for _, t := range n.children {
		if t.has(flat) && t.child(name) != nil {
			return t.name
		}
	}
	return ""
}

// homeOf returns the table that the stream's key of that name belongs to, "" if there is
// none. A usual mistake with TOML is to write a key below the header of another table.
func homeOf(name string, n *node, key toml.Key) string {
	if len(key) < 3 || key[0] != "stream" {
		return ""
	}
	stream := root().at("stream", "NAME")
	if c := stream.child(name); c != nil && c.kind != table {
		return key[:2].String()
	}
	for _, t := range stream.children {
		if t.kind != table || t == n {
			continue
		}
		if t.child(name) != nil {
			return append(key[:2:2], t.name).String()
		}
		if into := t.movedInto(name); into != "" {
			return append(key[:2:2], t.name, into).String()
		}
	}
	return ""
}

// nearest returns the key of table n whose name is most like the given one.
func nearest(name string, n *node) string {
	name = strings.ToLower(name)
	best, least := "", max(1, utf8.RuneCountInString(name)/3)+1
	for _, c := range n.children {
		if c.name == "NAME" || c.name == "COLUMN" {
			continue
		}
		away := distance(name, c.name)
		if away >= least && len(name) >= 3 && strings.HasPrefix(c.name, name) {
			away = least - 1
		}
		if away < least {
			best, least = c.name, away
		}
	}
	return best
}

// distance returns how many insertions, deletions, replacements and swaps of neighbours turn
// a into b.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			same := 1
			if x[i-1] == y[j-1] {
				same = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+same)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
