package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// frame is a function in the tree of calls, below its caller.
type frame struct {
	name  string
	spent time.Duration // time in the function and its callees
	calls map[string]*frame
}

// flame draws CPU profiles as a flame graph, an SVG file without scripts. Each box is a function on top of its caller;
// the width of the box is the function's share of the processor time.
func flame(title, output string, profiles []string) error {
	args := append([]string{"tool", "pprof", "-traces"}, profiles...)
	text, err := exec.Command("go", args...).Output()
	if err != nil {
		return fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	root, err := stacks(text)
	if err != nil {
		return err
	}
	if root.spent == 0 {
		return fmt.Errorf("no samples in %s", strings.Join(profiles, ", "))
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	return os.WriteFile(output, draw(title, root), 0o644)
}

// stacks reads the output of pprof -traces. A stack is a line of dashes, then the time and the
// innermost function, then its callers.
func stacks(text []byte) (*frame, error) {
	root := &frame{name: "the process"}
	var spent time.Duration
	var stack []string
	finish := func() {
		if spent == 0 {
			return
		}
		root.spent += spent
		f := root
		for _, name := range slices.Backward(stack) {
			if f.calls == nil {
				f.calls = map[string]*frame{}
			}
			if f.calls[name] == nil {
				f.calls[name] = &frame{name: name}
			}
			f = f.calls[name]
			f.spent += spent
		}
		spent, stack = 0, stack[:0]
	}
	begun := false
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "-----") {
			finish()
			begun = true
			continue
		}
		name := strings.TrimSuffix(strings.TrimSpace(line), " (inline)")
		if !begun || name == "" || strings.Contains(name, ":  ") { // the line is a label
			continue
		}
		if value, function, ok := strings.Cut(name, "   "); ok && len(stack) == 0 {
			d, err := time.ParseDuration(value)
			if err != nil {
				return nil, fmt.Errorf("pprof -traces: %q is not a duration", value)
			}
			spent, name = d, strings.TrimSpace(function)
		}
		stack = append(stack, name)
	}
	finish()
	return root, nil
}

// Sizes of the picture, in pixels.
const (
	flameWidth  = 1200
	flameHeight = 17
	flameTop    = 50
	flameLeast  = 0.6 // width below which a box is omitted
)

// draw returns the SVG, with the process at the bottom.
func draw(title string, root *frame) []byte {
	deepest := 0
	var boxes bytes.Buffer
	var place func(f *frame, x float64, depth int)
	scale := flameWidth / float64(root.spent)
	place = func(f *frame, x float64, depth int) {
		width := float64(f.spent) * scale
		if width < flameLeast {
			return
		}
		deepest = max(deepest, depth)
		fmt.Fprintf(&boxes, `<g><title>%s: %.1f %%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`,
			html.EscapeString(f.name), 100*float64(f.spent)/float64(root.spent), x, -depth*flameHeight, width-0.3,
			flameHeight-1, colour(f.name))
		if name, room := short(f.name), int(width/6.6); room >= 4 {
			if len(name) > room {
				name = name[:room-1] + "…"
			}
			fmt.Fprintf(&boxes, `<text x="%.1f" y="%d">%s</text>`, x+2, -depth*flameHeight+12, html.EscapeString(name))
		}
		boxes.WriteString("</g>\n")
		var calls []*frame
		for _, c := range f.calls {
			calls = append(calls, c)
		}
		slices.SortFunc(calls,
			func(a, b *frame) int { return cmp.Or(cmp.Compare(b.spent, a.spent), cmp.Compare(a.name, b.name)) })
		for _, c := range calls {
			place(c, x, depth+1)
			x += float64(c.spent) * scale
		}
	}
	place(root, 0, 0)
	height := flameTop + (deepest+1)*flameHeight + 5
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="monospace" font-size="11">
<rect width="%d" height="%d" fill="white"/>
<text x="4" y="18" font-size="14">%s</text>
<text x="4" y="36">%.2f s of processor time. Red: reading from Kafka. Orange: the daemon. Yellow: mechanisms and noise. Blue: this program's other parts. Grey: Go and libraries.</text>
<g transform="translate(0 %d)">
`, flameWidth, height, flameWidth, height, html.EscapeString(title), root.spent.Seconds(), height-5-flameHeight)
	b.Write(boxes.Bytes())
	b.WriteString("</g>\n</svg>\n")
	return b.Bytes()
}

// short is a function's name without the folders of its package.
func short(name string) string {
	at := strings.IndexAny(name, "([") // start of a receiver or of type arguments
	if at < 0 {
		at = len(name)
	}
	return name[strings.LastIndex(name[:at], "/")+1:]
}

// module is the prefix of this project's functions.
const module = "github.com/streamdp/streamdp/"

// colour returns the colour of the part of the program that a function belongs to.
func colour(name string) string {
	own, ours := strings.CutPrefix(name, module)
	switch {
	case strings.HasPrefix(name, "github.com/segmentio/kafka-go"), ours &&
		begins(own, "internal/kafka", "stream/input"):
		return "#e4776b"
	case ours &&
		begins(own, "dp", "moments", "matfact", "sgd", "refit", "adam", "internal/gram", "internal/newton",
			"stream/core"):
		return "#f2cf5b"
	case ours && begins(own, "stream"):
		return "#f0a35e"
	case ours:
		return "#8fb8de"
	}
	return "#d0d0d0"
}

// begins reports whether a function belongs to one of the packages or to a package below one.
func begins(function string, packages ...string) bool {
	for _, p := range packages {
		if rest, ok := strings.CutPrefix(function, p); ok && rest != "" && (rest[0] == '.' || rest[0] == '/') {
			return true
		}
	}
	return false
}
