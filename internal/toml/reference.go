package toml

import (
	"fmt"
	"strings"
)

// Describe returns a section in Markdown for each table below n, in order, with a list of its keys.
func (n *Node) Describe() string {
	var b strings.Builder
	n.describe(&b)
	return b.String()
}

func (n *Node) describe(b *strings.Builder) {
	for _, c := range n.Children {
		if c.Kind != Table {
			continue
		}
		if c.Named == nil { // a table with file-chosen names has no keys of its own
			c.section(b)
		}
		c.describe(b)
	}
}

func (n *Node) section(b *strings.Builder) {
	fmt.Fprintf(b, "\n## [%s]", n.Path)
	if n.Has(Outside) {
		b.WriteString(" °")
	}
	b.WriteString("\n\n" + n.Doc)
	if n.Has(Required) {
		b.WriteString(" Required.")
	}
	b.WriteString("\n\n")
	for _, c := range n.Children {
		if c.Kind == Table {
			continue
		}
		name := "`" + c.Name + "`"
		if c.Has(Outside) && !n.Has(Outside) {
			name += " °"
		}
		meaning := c.Doc
		if c.Rule.Text != "" {
			meaning += " Must be " + c.Rule.Text + "."
		}
		if !explains(c.Doc, c.Words) {
			meaning += " One of " + listed(c.Words) + "."
		}
		fmt.Fprintf(b, "- %s (%s; %s): %s\n", name, c.Kind.Name, c.defaultText(), meaning)
	}
}

func (n *Node) defaultText() string {
	switch {
	case n.Has(Required):
		return "required"
	case n.Says != "":
		return n.Says
	case n.Def != "":
		return "default `" + n.Def + "`"
	}
	return "optional"
}

// explains reports whether a text quotes each of the words.
func explains(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, listed([]string{w})) {
			return false
		}
	}
	return true
}

// listed formats words as code.
func listed(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "`\"" + w + "\"`"
	}
	return strings.Join(quoted, ", ")
}
