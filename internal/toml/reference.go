package toml

import (
	"fmt"
	"strings"
)

// Describe returns a Markdown section for each table below n, in order, with a table of its keys.
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
		if c.Named == nil { // otherwise it contains only names
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
	rows := 0
	for _, c := range n.Children {
		if c.Kind == Table {
			continue
		}
		if rows++; rows == 1 {
			b.WriteString("| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
		}
		name := "`" + c.Name + "`"
		if c.Has(Outside) && !n.Has(Outside) {
			name += " °"
		}
		meaning := c.Doc
		if c.Rule.Text != "" {
			meaning += " Must be " + c.Rule.Text + "."
		}
		if len(c.Words) > 0 {
			meaning += " One of " + listed(c.Words) + "."
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, c.Kind.Name, c.defaultText(), meaning)
	}
}

func (n *Node) defaultText() string {
	switch {
	case n.Has(Required):
		return "required"
	case n.Says != "":
		return n.Says
	case n.Def != "":
		return "`" + n.Def + "`"
	}
	return "none"
}

// listed formats words as code.
func listed(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "`\"" + w + "\"`"
	}
	return strings.Join(quoted, ", ")
}
