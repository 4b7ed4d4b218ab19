package chart

import (
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// letters is the font of bitmaps. The layout of an SVG uses the widths of this font too.
var letters = sync.OnceValue(func() *sfnt.Font {
	f, err := sfnt.Parse(goregular.TTF)
	if err != nil {
		panic(err) // unreachable: the font is part of the program
	}
	return f
})

// glyphs calls f with each glyph of a text and the position where it begins. It returns the position where the text
// ends. Positions are in typographic points.
func glyphs(text string, f func(b *sfnt.Buffer, glyph sfnt.GlyphIndex, x float64)) float64 {
	var b sfnt.Buffer
	x := 0.0
	for _, r := range text {
		glyph, err := letters().GlyphIndex(&b, r)
		if err != nil {
			glyph = 0 // the box for a rune that the font lacks
		}
		if f != nil {
			f(&b, glyph, x)
		}
		if advance, err := letters().GlyphAdvance(&b, glyph, em(), font.HintingNone); err == nil {
			x += length(advance)
		}
	}
	return x
}

// em is the font size at which all coordinates of the font are whole numbers.
func em() fixed.Int26_6 { return fixed.I(int(letters().UnitsPerEm())) }

// length converts a length at size em into one at size fontSize.
func length(v fixed.Int26_6) float64 { return float64(v) / float64(em()) * fontSize }

// textWidth returns the width of a text in typographic points.
func textWidth(text string) float64 { return glyphs(text, nil) }

// outlines returns the shapes of a text that begins at (0, 0).
func outlines(text string) [][]point {
	var shapes [][]point
	glyphs(text, func(b *sfnt.Buffer, glyph sfnt.GlyphIndex, x float64) {
		segments, err := letters().LoadGlyph(b, glyph, em(), nil)
		if err != nil {
			return
		}
		for _, s := range segments {
			var p [3]point
			for i, a := range s.Args {
				p[i] = point{x + length(a.X), length(a.Y)}
			}
			if s.Op == sfnt.SegmentOpMoveTo {
				shapes = append(shapes, []point{p[0]})
				continue
			}
			last := &shapes[len(shapes)-1]
			from := (*last)[len(*last)-1]
			switch s.Op {
			case sfnt.SegmentOpLineTo:
				*last = append(*last, p[0])
			case sfnt.SegmentOpQuadTo: // the font has no cubic curves
				const pieces = 6
				for k := 1; k <= pieces; k++ {
					t := float64(k) / pieces
					at := func(a, b, c float64) float64 { return (1-t)*(1-t)*a + 2*t*(1-t)*b + t*t*c }
					*last = append(*last, point{at(from.x, p[0].x, p[1].x), at(from.y, p[0].y, p[1].y)})
				}
			}
		}
	})
	return shapes
}
