package newton

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/bin"
	"github.com/streamdp/streamdp/internal/gram"
)

// Gram releases G = Σ xxᵀ of rows clipped to norm R, with symmetric Gaussian noise. It computes in integers: rows are
// on a lattice with norm at most K, their products are exact, each block is rounded once to the lattice of the release,
// and the noise is rounded.
//
// Privacy: in the Frobenius norm, which counts the entries off the diagonal √2-fold, a record moves G by at most √S·R²,
// where S = 1 under zero-out and 2 under replace (because ⟨xxᵀ, zzᵀ⟩ ≥ 0). Rounding adds less than a lattice step per
// entry. So noise of standard deviation
//
//	SD = √S·(R² + d·g₂)/μ  on the diagonal,  SD/√2 off it
//
// makes G μ-Gaussian private. Longer rows are shortened, so this holds for all rows.
//
// Cost: O(d²) time a row, O(d²) memory; Add allocates nothing.
// Source: docs/theory/refit.md.
type Gram struct {
	// SD is the noise's standard deviation on the diagonal.
	SD float64
	// Flat makes the noise off the diagonal as large as on it. Privacy does not need so much noise; older methods
	// specify it.
	Flat bool
	// Once adds up a step's products exactly and rounds them once, at Seal, as if all rows were one block. So the sum
	// does not depend on the order of the rows. The sensitivity does not change. Set Once before the first row.
	Once bool

	dim   int
	rows  dp.Lattice
	exp   int     // exponent of the lattice step of the release, g₂ = 2^exp
	limit float64 // number of rows whose sum fits 62 bits

	sum   partial
	added float64

	// Values at the last Seal; a state holds only these.
	sealed []int64
	kept   float64
}

// partial is a sum of blocks.
type partial struct {
	row     []int64
	squares gram.Exact
	inBlock int
	total   []int64
	rest    []int64 // remainders of rounding down; used only with Once
}

// blockRows is the number of rows that are summed exactly before they are rounded. Their
// positions are public.
const blockRows = 4096

// NewGram returns an empty sum for rows of length dim, clipped to norm √squared, whose release will be μ-Gaussian
// private.
//
// Errors: no lattice fits, because the noise is too small or too large relative to R².
func NewGram(dim int, squared, mu float64, a dp.Adjacency, bits int) (*Gram, error) {
	r := math.Sqrt(squared)
	rows, err := dp.NewLattice(r, r, bits)
	if err != nil {
		return nil, err
	}
	root := math.Sqrt(a.Factor())
	sd := root * squared / mu
	_, e := math.Frexp(min(squared, sd/math.Sqrt2))
	g := &Gram{dim: dim, rows: rows, exp: e - 1 - bits}
	step := math.Ldexp(1, g.exp)
	g.SD = root * (squared + float64(dim)*step) / mu * dp.RoundUp
	k := float64(rows.K)
	g.limit = math.Ldexp(1, 62) / (math.Ldexp(k*k, 2*rows.Exp-g.exp) + 1)
	if g.exp < 2*rows.Exp || !(dp.MaxDraw*g.SD/step < 1<<51) {
		return nil,
			fmt.Errorf("no lattice fits noise of standard deviation %g for a Gram matrix whose rows have squared "+
				"norm %g",
				sd, squared)
	}
	g.sum = g.newPartial()
	g.sealed = make([]int64, len(g.sum.total))
	return g, nil
}

// Limit returns the largest number of rows of a release.
func (g *Gram) Limit() float64 { return g.limit }

func (g *Gram) newPartial() partial {
	return partial{
		row:     make([]int64, g.dim),
		squares: gram.NewExact(g.dim, g.rows.K),
		total:   make([]int64, g.dim*(g.dim+1)/2),
	}
}

// Block returns the number of rows of a block. Their sum fits 62 bits.
func (g *Gram) Block() int { return int(min(blockRows, (1<<62)/(g.rows.K*g.rows.K))) }

// Add adds a row. A caller that ends no blocks must add null rows too, as zeros, because a block ends after a fixed
// number of rows. Otherwise it must call EndBlock at public positions that are at most Block rows apart.
func (g *Gram) Add(x []float64) {
	g.sum.add(g, x)
	g.added++
}

// AddRows adds rows that start every stride numbers, on several processors if there are many rows. It must be the first
// call, or whole blocks must have been added before.
func (g *Gram) AddRows(x []float64, stride int) {
	size := g.Block() * stride
	blocks := (len(x) + size - 1) / size
	workers := min(runtime.GOMAXPROCS(0), blocks)
	if g.sum.inBlock > 0 || workers < 2 {
		for ; len(x) > 0; x = x[stride:] {
			g.Add(x[:g.dim])
		}
		return
	}
	parts := make([]partial, workers)
	var group sync.WaitGroup
	for i := range parts {
		part := x[i*blocks/workers*size : min((i+1)*blocks/workers*size, len(x))]
		g.added += float64(len(part) / stride)
		group.Go(func() {
			p := g.newPartial()
			for ; len(part) > 0; part = part[stride:] {
				p.add(g, part[:g.dim])
			}
			parts[i] = p
		})
	}
	group.Wait()
	last := len(parts) - 1 // may hold an open block
	for _, p := range append(parts[:last:last], g.sum) {
		addTo(parts[last].total, p.total)
		if p.rest != nil {
			if parts[last].rest == nil {
				parts[last].rest = make([]int64, len(p.rest))
			}
			addTo(parts[last].rest, p.rest)
		}
	}
	g.sum = parts[last]
}

func addTo(dst, x []int64) {
	for i, v := range x {
		dst[i] += v
	}
}

func (p *partial) add(g *Gram, x []float64) {
	if g.rows.Quantise(p.row, x) {
		p.squares.Add(p.row)
	}
	if p.inBlock++; p.inBlock == g.Block() {
		p.endBlock(g)
	}
}

// endBlock rounds the block's products and adds them to the total.
func (p *partial) endBlock(g *Gram) {
	shift, half := g.shift()
	if g.Once {
		if p.rest == nil {
			p.rest = make([]int64, len(p.total))
		}
		for i, v := range p.squares.Total() {
			rest := p.rest[i] + v&(1<<shift-1)
			p.total[i] += v>>shift + rest>>shift
			p.rest[i] = rest & (1<<shift - 1)
		}
	} else {
		for i, v := range p.squares.Total() {
			p.total[i] += (v + half) >> shift
		}
	}
	p.squares.Reset()
	p.inBlock = 0
}

// shift returns the number of bits by which sums of products are shifted, and half of the last bit, for rounding.
func (g *Gram) shift() (shift uint, half int64) {
	if shift = uint(g.exp - 2*g.rows.Exp); shift > 0 {
		half = 1 << (shift - 1)
	}
	return shift, half
}

// EndBlock ends a block of fewer rows than Block.
func (g *Gram) EndBlock() { g.sum.endBlock(g) }

// Rows returns the number of rows that were added before the last Seal.
func (g *Gram) Rows() float64 { return g.kept }

// Seal ends a block and a step. The rows added so far become part of the state.
func (g *Gram) Seal() {
	g.EndBlock()
	shift, half := g.shift()
	for i, v := range g.sum.rest {
		g.sum.total[i] += (v + half) >> shift
	}
	clear(g.sum.rest)
	addTo(g.sealed, g.sum.total)
	clear(g.sum.total)
	g.kept = g.added
}

// Drop discards the rows added since the last Seal.
func (g *Gram) Drop() {
	g.sum.squares.Reset()
	clear(g.sum.total)
	clear(g.sum.rest)
	g.sum.inBlock, g.added = 0, g.kept
}

// AppendTo appends the state after the last Seal.
func (g *Gram) AppendTo(w *bin.Writer) {
	w.Float(g.kept)
	for _, v := range g.sealed {
		w.Int(v)
	}
}

// Restore reads a state that AppendTo wrote for a sum with the same parameters, and discards rows added since the last
// Seal. It refuses sums that are too large for the number of rows.
func (g *Gram) Restore(r *bin.Reader) {
	g.kept = r.Float()
	r.Bad = r.Bad || !(g.kept >= 0 && g.kept <= g.limit) || g.kept != math.Floor(g.kept)
	most := g.kept * (math.Ldexp(1, 62) / g.limit)
	for i := range g.sealed {
		v := r.Int()
		r.Bad = r.Bad || !(math.Abs(float64(v)) <= most)
		g.sealed[i] = v
	}
	g.Drop()
}

// Release returns the noisy upper triangle, row by row. It also seals the sum.
//
// Errors: there are more rows than sums of 62 bits can hold.
func (g *Gram) Release(n dp.Noise, array string) ([]float64, error) {
	if !(g.added <= g.limit) {
		return nil, fmt.Errorf("too many rows: their sums do not fit %d bits", 62)
	}
	g.Seal()
	hidden := g.sealed
	diagonal := math.Ldexp(g.SD, -g.exp)
	off := diagonal / math.Sqrt2
	if g.Flat {
		off = diagonal
	}
	sd := make([]float64, 0, len(hidden))
	for i := range g.dim {
		sd = append(sd, diagonal)
		for range g.dim - i - 1 {
			sd = append(sd, off)
		}
	}
	noise, upper := make([]int64, len(hidden)), make([]float64, len(hidden))
	dp.RoundRow(noise, n.Row(array, hidden), sd, nil, 1)
	for i, v := range hidden {
		upper[i] = math.Ldexp(float64(v+noise[i]), g.exp)
	}
	return upper, nil
}
