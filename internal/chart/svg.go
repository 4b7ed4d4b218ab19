package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"strconv"
	"strings"
)

// fontFamily names fonts whose letters have approximately the widths that textWidth measures.
const fontFamily = "'Liberation Sans', Arial, Helvetica, 'DejaVu Sans', sans-serif"

// svg is a canvas for an SVG file.
type svg struct{ b bytes.Buffer }

func newSVG(width, height float64) *svg {
	s := &svg{}
	w, h := decimal(width), decimal(height)
	s.b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" `)
	fmt.Fprintf(&s.b, `width="%spt" height="%spt" viewBox="0 0 %s %s" `, w, h, w, h)
	fmt.Fprintf(&s.b, "font-family=\"%s\" font-size=\"%d\" fill=\"%s\">\n", fontFamily, fontSize, hex(ink))
	fmt.Fprintf(&s.b, "<rect width=\"%s\" height=\"%s\" fill=\"#ffffff\"/>\n", w, h)
	return s
}

func (s *svg) line(points []point, k stroke) {
	s.b.WriteString(`<polyline points="`)
	was := ""
	for i, p := range points {
		at := decimal(p.x) + "," + decimal(p.y)
		if at == was && i != len(points)-1 {
			continue // the segment is too short to be visible
		}
		if was != "" {
			s.b.WriteByte(' ')
		}
		s.b.WriteString(at)
		was = at
	}
	fmt.Fprintf(&s.b, `" fill="none" stroke="%s" stroke-width="%s"`, hex(k.colour), decimal(k.width))
	s.b.WriteString(` stroke-linejoin="round"`)
	if k.dashes != nil {
		fmt.Fprintf(&s.b, ` stroke-dasharray="%s %s"`, decimal(k.dashes[0]), decimal(k.dashes[1]))
	}
	s.b.WriteString("/>\n")
}

func (s *svg) text(at point, share float64, up bool, text string) {
	x, y := decimal(at.x), decimal(at.y)
	fmt.Fprintf(&s.b, `<text x="%s" y="%s"`, x, y)
	switch share {
	case 0.5:
		s.b.WriteString(` text-anchor="middle"`)
	case 1:
		s.b.WriteString(` text-anchor="end"`)
	}
	if up {
		fmt.Fprintf(&s.b, ` transform="rotate(-90 %s %s)"`, x, y)
	}
	s.b.WriteByte('>')
	xml.EscapeText(&s.b, []byte(text)) // a buffer never fails
	s.b.WriteString("</text>\n")
}

func (s *svg) encode() ([]byte, error) {
	s.b.WriteString("</svg>\n")
	return s.b.Bytes(), nil
}

// decimal formats a length with at most two decimals.
func decimal(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(v, 'f', 2, 64), "0"), ".")
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }
