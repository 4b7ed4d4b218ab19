package chart

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"

	"golang.org/x/image/vector"
)

// resolution is the number of pixels per typographic point: 150 pixels per inch.
const resolution = 150.0 / 72

// bitmap is a canvas for a PNG file.
type bitmap struct{ image *image.RGBA }

func newBitmap(width, height float64) *bitmap {
	b := &bitmap{image.NewRGBA(image.Rect(0, 0, int(math.Round(width*resolution)), int(math.Round(height*resolution))))}
	draw.Draw(b.image, b.image.Bounds(), image.White, image.Point{}, draw.Src)
	return b
}

// line fills a rectangle for each segment, and a disc at each joint. All shapes have the same orientation, because
// overlaps of opposite orientations would cancel.
func (b *bitmap) line(points []point, s stroke) {
	var shapes [][]point
	half := s.width / 2
	for _, part := range dashed(points, s.dashes) {
		for i := 1; i < len(part); i++ {
			p, q := part[i-1], part[i]
			long := math.Hypot(q.x-p.x, q.y-p.y)
			if long == 0 {
				continue
			}
			nx, ny := (p.y-q.y)/long*half, (q.x-p.x)/long*half
			shapes = append(shapes, []point{
				{p.x + nx, p.y + ny}, {p.x - nx, p.y - ny}, {q.x - nx, q.y - ny}, {q.x + nx, q.y + ny},
			})
			if i > 1 {
				disc := make([]point, 12)
				for k := range disc {
					sin, cos := math.Sincos(-2 * math.Pi * float64(k) / float64(len(disc)))
					disc[k] = point{p.x + half*cos, p.y - half*sin}
				}
				shapes = append(shapes, disc)
			}
		}
	}
	b.fill(shapes, s.colour)
}

// dashed cuts a line into dashes of length lengths[0], with gaps of length lengths[1].
func dashed(points []point, lengths []float64) [][]point {
	if lengths == nil {
		return [][]point{points}
	}
	var parts [][]point
	state, left := 1, 0.0 // 0: in a dash, 1: in a gap; left is its remaining length
	for i := 1; i < len(points); i++ {
		p, q := points[i-1], points[i]
		long := math.Hypot(q.x-p.x, q.y-p.y)
		for at := 0.0; long-at > left; {
			at += left
			edge := point{p.x + (q.x-p.x)*at/long, p.y + (q.y-p.y)*at/long}
			if state == 0 {
				parts[len(parts)-1] = append(parts[len(parts)-1], edge)
			} else {
				parts = append(parts, []point{edge})
			}
			state = 1 - state
			left = lengths[state]
			p, long, at = edge, long-at, 0
		}
		left -= long
		if state == 0 {
			parts[len(parts)-1] = append(parts[len(parts)-1], q)
		}
	}
	return parts
}

func (b *bitmap) text(at point, share float64, up bool, text string) {
	width := textWidth(text)
	var shapes [][]point
	for _, shape := range outlines(text) {
		for i, p := range shape {
			p.x -= share * width
			if up {
				p.x, p.y = p.y, -p.x
			}
			shape[i] = point{at.x + p.x, at.y + p.y}
		}
		shapes = append(shapes, shape)
	}
	b.fill(shapes, ink)
}

// fill fills closed shapes.
func (b *bitmap) fill(shapes [][]point, c color.RGBA) {
	low, high := point{math.Inf(1), math.Inf(1)}, point{math.Inf(-1), math.Inf(-1)}
	for _, shape := range shapes {
		for _, p := range shape {
			low = point{min(low.x, p.x*resolution), min(low.y, p.y*resolution)}
			high = point{max(high.x, p.x*resolution), max(high.y, p.y*resolution)}
		}
	}
	if low.x > high.x {
		return
	}
	area := image.Rect(int(math.Floor(low.x)), int(math.Floor(low.y)), int(math.Ceil(high.x))+1,
		int(math.Ceil(high.y))+1)
	r := vector.NewRasterizer(area.Dx(), area.Dy())
	for _, shape := range shapes {
		for i, p := range shape {
			x, y := float32(p.x*resolution-float64(area.Min.X)), float32(p.y*resolution-float64(area.Min.Y))
			if i == 0 {
				r.MoveTo(x, y)
			} else {
				r.LineTo(x, y)
			}
		}
		r.ClosePath()
	}
	r.Draw(b.image, area, image.NewUniform(c), image.Point{})
}

func (b *bitmap) encode() ([]byte, error) {
	var out bytes.Buffer
	err := png.Encode(&out, b.image)
	return out.Bytes(), err
}
