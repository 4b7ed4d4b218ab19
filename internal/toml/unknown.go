package toml

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// unknown records a fault for a key that table n does not have, and guesses the intended key.
func (d *Document) unknown(n *Node, key Key) {
	name := key[len(key)-1]
	rule := "unknown key"
	hint := ""
	path := name
	if n.Path != "" {
		path = n.Path + "." + name
	}
	if into := n.movedInto(name); into != "" {
		hint = "moved to [" + append(key[:len(key)-1:len(key)-1], into).String() + "]"
	} else if slices.Contains(n.top().former, path) {
		hint = "remove it: it has no effect in this version"
	} else if n.Has(Flat) && n.Parent.Child(name) != nil {
		hint = "it belongs in [" + key[:len(key)-2].String() + "]"
	} else if near := nearest(name, n); near != "" {
		hint = "did you mean " + near + "?"
		if near == strings.ToLower(name) {
			rule = "keys are lower case"
		}
	} else if home := homeOf(name, n, key); home != "" {
		hint = "it belongs in [" + home + "]"
	}
	d.Add(key, -1, rule, nil).Hint = hint
}

// top returns the root of the tree.
func (n *Node) top() *Node {
	for n.Parent != nil {
		n = n.Parent
	}
	return n
}

// movedInto returns the flat table of n that has the named key, "" if none has. Earlier versions had that key in n
// itself.
func (n *Node) movedInto(name string) string {
	for _, t := range n.Children {
		if t.Has(Flat) && t.Child(name) != nil {
			return t.Name
		}
	}
	return ""
}

// homeOf returns the table of the same stream that has a key of that name, "" if there is none. It is for a hint: a
// common mistake in TOML is to write a key below the header of another table.
func homeOf(name string, n *Node, key Key) string {
	var around *Node
	for up := n; up != nil; up = up.Parent {
		if up.named() {
			around = up
		}
	}
	if around == nil {
		return ""
	}
	here := key[:1+strings.Count(around.Path, ".")]
	here = here[:len(here):len(here)]
	if c := around.Child(name); c != nil && c.Kind != Table {
		return here.String()
	}
	for _, t := range around.Children {
		if t.Kind != Table || t == n {
			continue
		}
		if t.Child(name) != nil {
			return append(here, t.Name).String()
		}
		if into := t.movedInto(name); into != "" {
			return append(here, t.Name, into).String()
		}
	}
	return ""
}

// nearest returns the key of table n with the most similar name.
func nearest(name string, n *Node) string {
	name = strings.ToLower(name)
	best, least := "", max(1, utf8.RuneCountInString(name)/3)+1
	for _, c := range n.Children {
		if c.named() {
			continue
		}
		away := Distance(name, c.Name)
		if away >= least && len(name) >= 3 && strings.HasPrefix(c.Name, name) {
			away = least - 1
		}
		if away < least {
			best, least = c.Name, away
		}
	}
	return best
}

// Distance returns the smallest number of insertions, deletions, replacements and swaps of neighbours that turn a into
// b.
func Distance(a, b string) int {
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
