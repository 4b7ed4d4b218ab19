package newton

import (
	"math"
)

// Whitening is the linear map that a noisy Gram matrix G̃ = VΛVᵀ suggests:
//
//	W = V·diag(H^−½)·Vᵀ,  H_i = min(max(λ_i + ρ, ρ), tr)
//
// with a ridge ρ that stands for the noise and a cap tr that stands for the trace. It
// is the symmetric root, so it does not depend on the sign or order of eigenvectors.
type Whitening struct {
	Root    []float64 // W, d×d, row-major
	Vectors []float64 // V, eigenvectors as columns, d×d, row-major
	Share   []float64 // h_i = ℓ_i/H_i, the part of H_i that is signal
	Scale   []float64 // √H_i
	dim     int
}

// Whiten returns the map for the upper triangle of G̃, row by row, with
// ℓ = clip(λ, 0, tr), scaled down so that Σℓ ≤ tr.
//
// Cost: O(d³), some ten times that of a product of matrices.
func Whiten(upper []float64, dim int, ridge, trace float64) *Whitening {
	values, vectors := Eigen(upper, dim)
	w := &Whitening{Vectors: vectors, Share: make([]float64, dim), Scale: make([]float64, dim), Root: make([]float64, dim*dim), dim: dim}
	var sum float64
	for i, v := range values {
		w.Share[i] = Clip(v, 0, trace)
		sum += w.Share[i]
		h := min(max(v+ridge, ridge), trace)
		w.Share[i] /= h
		w.Scale[i] = math.Sqrt(h)
	}
	if sum > trace {
		for i := range w.Share {
			w.Share[i] *= trace / sum
		}
	}
	for i := range dim {
		for j := range i + 1 {
			var sum float64
			for k, s := range w.Scale {
				sum += float64(vectors[i*dim+k]*vectors[j*dim+k]) / s
			}
			w.Root[i*dim+j], w.Root[j*dim+i] = sum, sum
		}
	}
	return w
}

// Signal returns Σh.
func (w *Whitening) Signal() float64 {
	var sum float64
	for _, h := range w.Share {
		sum += h
	}
	return sum
}

// Rotate sets dst to Vᵀx, the coordinates of x along the eigenvectors.
func (w *Whitening) Rotate(dst, x []float64) {
	for i := range dst {
		var sum float64
		for j, v := range x {
			sum += float64(w.Vectors[j*w.dim+i] * v)
		}
		dst[i] = sum
	}
}

// Apply sets dst to Wx. They must not overlap.
func (w *Whitening) Apply(dst, x []float64) {
	for i := range dst {
		row := w.Root[i*w.dim:][:len(x)]
		var sum float64
		for j, v := range x {
			sum += float64(row[j] * v)
		}
		dst[i] = sum
	}
}

// ApplyRows replaces each row x of an n×d matrix by Wx.
//
// Cost: d² multiplications a row, four rows at a time.
func (w *Whitening) ApplyRows(x []float64) {
	d := w.dim
	out := make([]float64, 4*d)
	o0, o1, o2, o3 := out[:d], out[d:2*d], out[2*d:3*d], out[3*d:]
	for ; len(x) >= 4*d; x = x[4*d:] {
		clear(out)
		for i := range d {
			row := w.Root[i*d:][:d]
			a, b, c, e := x[i], x[d+i], x[2*d+i], x[3*d+i]
			o0, o1, o2, o3 := o0[:len(row)], o1[:len(row)], o2[:len(row)], o3[:len(row)]
			for j, v := range row {
				o0[j] += float64(a * v)
				o1[j] += float64(b * v)
				o2[j] += float64(c * v)
				o3[j] += float64(e * v)
			}
		}
		copy(x, out)
	}
	for ; len(x) > 0; x = x[d:] {
		w.Apply(o0, x[:d])
		copy(x, o0)
	}
}

// Eigen returns the eigenvalues of a symmetric matrix, given by its upper triangle
// row by row, and its eigenvectors as the columns of a row-major matrix, in no
// particular order: by Jacobi's cyclic rotations, to 2⁻⁵⁰ of the matrix's norm.
//
// Cost: 6 to 12 rounds of 6d³ operations.
func Eigen(upper []float64, dim int) (values, vectors []float64) {
	d := dim
	a := make([]float64, d*d)
	vectors = make([]float64, d*d)
	n := 0
	var norm float64
	for i := range d {
		vectors[i*d+i] = 1
		for j := i; j < d; j++ {
			a[i*d+j], a[j*d+i] = upper[n], upper[n]
			norm += float64(upper[n] * upper[n])
			n++
		}
	}
	small := math.Sqrt(norm) * 0x1p-54 / float64(d)
	for range 60 {
		rotated := false
		for p := range d {
			for q := p + 1; q < d; q++ {
				if math.Abs(a[p*d+q]) > small {
					rotate(a, vectors, d, p, q)
					rotated = true
				}
			}
		}
		if !rotated {
			break
		}
	}
	values = make([]float64, d)
	for i := range values {
		values[i] = a[i*d+i]
	}
	return values, vectors
}

// rotate makes entry (p, q) of a zero.
func rotate(a, vectors []float64, d, p, q int) {
	apq := a[p*d+q]
	theta := (a[q*d+q] - a[p*d+p]) / (2 * apq)
	t := 1 / (math.Abs(theta) + math.Sqrt(float64(theta*theta)+1))
	if theta < 0 {
		t = -t
	}
	c := 1 / math.Sqrt(float64(t*t)+1)
	s := float64(t * c)
	app, aqq := a[p*d+p]-float64(t*apq), a[q*d+q]+float64(t*apq)
	// Rows p and q; columns follow by symmetry.
	rp, rq := a[p*d:][:d], a[q*d:][:d]
	for k, x := range rp {
		y := rq[k]
		u, v := float64(c*x)-float64(s*y), float64(s*x)+float64(c*y)
		rp[k], rq[k] = u, v
		a[k*d+p], a[k*d+q] = u, v
	}
	a[p*d+p], a[q*d+q], a[p*d+q], a[q*d+p] = app, aqq, 0, 0
	for k := range d {
		row := vectors[k*d:][:d]
		x, y := row[p], row[q]
		row[p], row[q] = float64(c*x)-float64(s*y), float64(s*x)+float64(c*y)
	}
}
