package newton

import (
	"math"

	"github.com/streamdp/streamdp/internal/eigen"
)

// Whitening is the linear map computed from a noisy Gram matrix G̃ = VΛVᵀ:
//
//	W = V·diag(H^−½)·Vᵀ,  H_i = min(max(λ_i + ρ, ρ), tr)
//
// The ridge ρ accounts for the noise. The cap tr is an upper estimate of the trace. W is the symmetric root, so it does
// not depend on the sign or the order of the eigenvectors.
type Whitening struct {
	Root    []float64 // W, d×d, row-major
	Vectors []float64 // V, eigenvectors as columns, d×d, row-major
	Share   []float64 // h_i = ℓ_i/H_i, the share of H_i that is signal
	Scale   []float64 // √H_i
	dim     int
}

// Whiten returns the map for the upper triangle of G̃, stored row by row. ℓ = clip(λ, 0, tr), scaled down so that Σℓ ≤
// tr.
//
// Cost: O(d³), about five times the cost of a matrix product.
func Whiten(upper []float64, dim int, ridge, trace float64) *Whitening {
	values, vectors := Eigen(upper, dim)
	w := &Whitening{Vectors: vectors, Share: make([]float64, dim), Scale: make([]float64, dim), dim: dim}
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
	w.setRoot()
	return w
}

// Uniform returns the map W = I/scale.
func Uniform(dim int, scale float64) *Whitening {
	vectors, scales := make([]float64, dim*dim), make([]float64, dim)
	for i := range dim {
		vectors[i*dim+i], scales[i] = 1, scale
	}
	return Restore(vectors, scales)
}

// Restore returns the map with the given V and √H, without the Share.
func Restore(vectors, scale []float64) *Whitening {
	w := &Whitening{Vectors: vectors, Scale: scale, dim: len(scale)}
	w.setRoot()
	return w
}

// setRoot computes W from V and √H.
func (w *Whitening) setRoot() {
	d := w.dim
	w.Root = make([]float64, d*d)
	for i := range d {
		for j := range i + 1 {
			var sum float64
			for k, s := range w.Scale {
				sum += float64(w.Vectors[i*d+k]*w.Vectors[j*d+k]) / s
			}
			w.Root[i*d+j], w.Root[j*d+i] = sum, sum
		}
	}
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

// Apply sets dst to Wx. dst and x must not overlap.
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

// Unapply sets dst to W⁻¹x = V√H·Vᵀx. dst and x must not overlap.
func (w *Whitening) Unapply(dst, x []float64) { w.Scaled(dst, x, w.Scale) }

// Scaled sets dst to V·diag(scale)·Vᵀx: it multiplies the component of x along each eigenvector by a number. dst and x
// must not overlap.
func (w *Whitening) Scaled(dst, x, scale []float64) {
	clear(dst)
	for k, s := range scale {
		var sum float64
		for j, v := range x {
			sum += float64(w.Vectors[j*w.dim+k] * v)
		}
		sum = float64(sum * s)
		for j := range dst {
			dst[j] += float64(w.Vectors[j*w.dim+k] * sum)
		}
	}
}

// ApplyFour sets each of the four rows of dst to W times the same row of x. The results have the same bits as those of
// Apply. dst and x must not overlap.
//
// Cost: 4d² multiplications, with AVX2 four at a time from d = 8 on. Without AVX2 it handles two rows of W at a time,
// which halves the stores.
func (w *Whitening) ApplyFour(dst, x []float64) {
	const columns = 8 // columns per call of the kernel
	d := w.dim
	if vector && d >= columns {
		dst, x = dst[:4*d], x[:4*d]
		for from := 0; from < d; from += columns {
			applyEight(&dst[0], &x[0], &w.Root[0], d, min(from, d-columns)) // the last call repeats some columns
		}
		return
	}
	clear(dst)
	o0, o1, o2, o3 := dst[:d], dst[d:2*d], dst[2*d:3*d], dst[3*d:4*d]
	x0, x1, x2, x3 := x[:d], x[d:2*d], x[2*d:3*d], x[3*d:4*d]
	i := 0
	for ; i+1 < d; i += 2 { // W is symmetric: row i is column i
		r := w.Root[i*d:][:d]
		s := w.Root[(i+1)*d:][:len(r)]
		o0, o1, o2, o3 := o0[:len(r)], o1[:len(r)], o2[:len(r)], o3[:len(r)]
		a0, a1, a2, a3 := x0[i], x1[i], x2[i], x3[i]
		b0, b1, b2, b3 := x0[i+1], x1[i+1], x2[i+1], x3[i+1]
		for j, u := range r {
			v := s[j]
			o0[j] = (o0[j] + float64(a0*u)) + float64(b0*v)
			o1[j] = (o1[j] + float64(a1*u)) + float64(b1*v)
			o2[j] = (o2[j] + float64(a2*u)) + float64(b2*v)
			o3[j] = (o3[j] + float64(a3*u)) + float64(b3*v)
		}
	}
	if i < d {
		a0, a1, a2, a3 := x0[i], x1[i], x2[i], x3[i]
		for j, u := range w.Root[i*d:][:d] {
			o0[j] += float64(a0 * u)
			o1[j] += float64(a1 * u)
			o2[j] += float64(a2 * u)
			o3[j] += float64(a3 * u)
		}
	}
}

// ApplyRows replaces each row x by Wx, four rows at a time. Rows start every stride ≥ d numbers; the numbers between
// them stay unchanged.
func (w *Whitening) ApplyRows(x []float64, stride int) {
	d := w.dim
	in, out := make([]float64, 4*d), make([]float64, 4*d)
	for ; len(x) >= 4*stride; x = x[4*stride:] {
		rows := x[:4*d]
		if stride > d {
			rows = in
			for i := range 4 {
				copy(rows[i*d:], x[i*stride:][:d])
			}
		}
		w.ApplyFour(out, rows)
		for i := range 4 {
			copy(x[i*stride:][:d], out[i*d:])
		}
	}
	for ; len(x) > 0; x = x[stride:] {
		w.Apply(out[:d], x[:d])
		copy(x, out[:d])
	}
}

// Eigen returns the eigenvalues of a symmetric matrix, given by its upper triangle row by row. It also returns the
// eigenvectors, as columns of a row-major matrix, in no particular order. If eigen.Symmetric does not converge (no such
// matrix is known), it returns zeros and the unit vectors, so that the result is still a function of the matrix.
func Eigen(upper []float64, dim int) (values, vectors []float64) {
	vectors = make([]float64, dim*dim)
	n := 0
	for i := range dim {
		for j := i; j < dim; j++ {
			vectors[j*dim+i] = upper[n]
			n++
		}
	}
	values, ok := eigen.Symmetric(vectors, dim)
	if !ok {
		clear(values)
		clear(vectors)
		for i := range dim {
			vectors[i*dim+i] = 1
		}
		return values, vectors
	}
	for i := range dim {
		for j := range i {
			vectors[i*dim+j], vectors[j*dim+i] = vectors[j*dim+i], vectors[i*dim+j]
		}
	}
	return values, vectors
}
