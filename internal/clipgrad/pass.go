package clipgrad

import (
	"math"
	"sync"
	"sync/atomic"
)

// pass holds the values that all rows of a pass share.
type pass struct {
	rows     *Rows
	dst      []int64
	u        []float64 // the iterate, divided by E
	top      float64   // E
	quotient float64   // E/ζ
	limit    int64     // the largest |τ| that is counted
	shift    uint
	size     int // number of rows of a block

	taken atomic.Int64  // number of units that workers have taken
	left  atomic.Int64  // number of units that are not yet summed
	done  chan struct{} // closed when no unit is left

	mu      sync.Mutex
	counted int64
}

// round adds a block's rounded sum to dst and sets the block to 0. If rest is not nil, it rounds down and adds the
// remainder to rest; see finish. A block's remainder is below 2^shift, shift ≤ 30, so the remainders of 2³¹ rows are
// below 2⁶¹.
func (p *pass) round(dst, rest, block []int64) {
	if rest != nil {
		mask := int64(1)<<p.shift - 1
		for j, v := range block {
			dst[j] += v >> p.shift
			rest[j] += v & mask
			block[j] = 0
		}
		return
	}
	half := int64(0)
	if p.shift > 0 {
		half = 1 << (p.shift - 1)
	}
	for j, v := range block {
		dst[j] += (v + half) >> p.shift
		block[j] = 0
	}
}

// finish adds the remainders of all blocks to dst, rounded.
func (p *pass) finish(dst, rest []int64) {
	if p.shift > 0 {
		for j, v := range rest {
			dst[j] += (v + 1<<(p.shift-1)) >> p.shift
		}
	}
}

// worker sums units of rows.
type worker struct {
	helper
	lanes []int64 // exact sums that are not yet in block: four for each column
	block []int64 // exact
	sum   []int64 // rounded sums, if workers round the blocks
	rest  []int64 // remainders of rounding down; nil if every block is rounded
	count int64

	scratch *scratch // working memory for rows that are not prepared
}

// apart is the distance, in numbers, between a worker's lanes and memory that other workers write. It is large because
// a processor prefetches memory beyond the memory that it uses, within a page.
const apart = 256

func newWorker(dim int) *worker {
	return &worker{lanes: make([]int64, 4*dim+2*apart)[apart:][:4*dim], block: make([]int64, dim),
		sum: make([]int64, dim)}
}

// UnitRows is the number of rows that are prepared together and that a worker takes at a time. It is small, so that no
// worker waits long for another one whose processor is busy with something else. Either a block is a whole number of
// units, or a unit is a whole number of blocks.
const UnitRows = 512

// run sums units until all units of the pass are taken.
func (w *worker) run(p *pass) {
	n := len(p.rows.y)
	for {
		lo := int(p.taken.Add(1)-1) * UnitRows
		if lo >= n {
			return
		}
		if unit := lo / UnitRows; !p.rows.prepared[unit] {
			if w.scratch == nil {
				w.scratch = newScratch(p.rows.dim)
			}
			p.rows.prepare(w.scratch, unit)
		}
		for end := min(lo+UnitRows, n); lo < end; {
			hi := min(lo+p.size, end)
			w.rows(p, lo, hi)
			if p.wholeBlocks() {
				p.round(w.sum, w.rest, w.block)
			}
			lo = hi
		}
		p.add(w, lo-1)
		if p.left.Add(-1) == 0 {
			close(p.done)
		}
	}
}

// add adds w's sums for the unit that contains row i to the pass's totals.
func (p *pass) add(w *worker, i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted += w.count
	w.count = 0
	if p.wholeBlocks() {
		move(p.dst, w.sum)
		move(p.rows.rest, w.rest)
		return
	}
	move(p.rows.blocks[i/p.size*p.rows.dim:][:p.rows.dim], w.block)
}

// wholeBlocks reports whether a unit is a whole number of blocks; then the workers round the blocks.
func (p *pass) wholeBlocks() bool { return p.size <= UnitRows }

// move adds src to dst and sets src to 0. It does nothing if dst is nil.
func move(dst, src []int64) {
	for j := range dst {
		dst[j] += src[j]
		src[j] = 0
	}
}

// rows adds rows lo … hi−1 to the block.
func (w *worker) rows(p *pass, lo, hi int) {
	r, whole := p.rows, min(hi, p.rows.grouped())
	if pairs := (whole - lo) / (2 * group); vector && pairs > 0 {
		w.count += addPairs(&w.lanes[0], &r.packed(lo)[0], &r.y[lo], &r.norm[lo], &p.u[0], r.dim, pairs, p.quotient,
			p.top, float64(p.limit+1)+magic)
		w.flush()
		lo += pairs * 2 * group
	}
	for ; lo < whole; lo += group / 2 { // a block of 30 bits is half a group
		first := lo &^ (group - 1)
		w.half(p, r.packed(first)[(lo-first)/2:], lo)
	}
	for ; lo < hi; lo++ {
		w.one(p, lo)
	}
}

// grouped returns the number of rows in whole groups.
func (r *Rows) grouped() int { return len(r.y) &^ (group - 1) }

// half adds rows i … i+3 to the block. e starts with their integers.
func (w *worker) half(p *pass, e []float64, i int) {
	r := p.rows
	var s0, s1, s2, s3 float64
	for j, v := range p.u {
		k := e[words*j:][:2]
		a, b := math.Float64bits(k[0]), math.Float64bits(k[1])
		s0 += float64(float64(int32(a)) * v)
		s1 += float64(float64(int32(a>>32)) * v)
		s2 += float64(float64(int32(b)) * v)
		s3 += float64(float64(int32(b>>32)) * v)
	}
	y, norm := r.y[i:][:4], r.norm[i:][:4]
	t0, t1 := p.weight(y[0], norm[0], s0), p.weight(y[1], norm[1], s1)
	t2, t3 := p.weight(y[2], norm[2], s2), p.weight(y[3], norm[3], s3)
	w.count += (p.counts(t0, norm[0]) + p.counts(t1, norm[1])) + (p.counts(t2, norm[2]) + p.counts(t3, norm[3]))
	for j := range w.block {
		k := e[words*j:][:2]
		a, b := math.Float64bits(k[0]), math.Float64bits(k[1])
		w.block[j] += (int64(int32(a))*t0 + int64(int32(a>>32))*t1) + (int64(int32(b))*t2 + int64(int32(b>>32))*t3)
	}
}

// flush moves the lanes to the block.
func (w *worker) flush() {
	for j := range w.block {
		lane := w.lanes[4*j:][:4]
		w.block[j] += (lane[0] + lane[1]) + (lane[2] + lane[3])
	}
	clear(w.lanes)
}

// weight returns τ for the product s = ⟨e, u⟩/E. |τ| is at most E for every s. weight and counts have no branch that
// depends on the data.
func (p *pass) weight(y, norm, s float64) int64 {
	t := math.Float64bits(float64((y-float64(norm*s))*norm) * p.quotient)
	// Numbers that are not negative are ordered like their bits.
	size := math.Float64frombits(min(t&^(1<<63), math.Float64bits(p.top)))
	negative := int64(t) >> 63
	return (int64((size+magic)-magic) ^ negative) - negative
}

// counts returns 1 if |τ| ≤ ⌊cE⌋ and the row is not null.
func (p *pass) counts(t int64, norm float64) int64 {
	return int64(uint64(max(t, -t)-p.limit-1) >> 63 &^ (math.Float64bits(norm) >> 63))
}

// one adds a single row i, one that is not in a whole group.
func (w *worker) one(p *pass, i int) {
	e := p.rows.row(i)
	var s float64
	for j, v := range e {
		s += float64(v * p.u[j])
	}
	t := p.weight(p.rows.y[i], p.rows.norm[i], s)
	w.count += p.counts(t, p.rows.norm[i])
	for j, v := range e {
		w.block[j] += int64(v) * t
	}
}
