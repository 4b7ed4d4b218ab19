// Package eigen computes eigenvalues and eigenvectors of symmetric matrices, A = QΛQᵀ. It
// gives the same bits on every architecture, because numbers computed from them are
// released.
package eigen

import "math"

// Symmetric computes the eigenvalues and eigenvectors of a symmetric matrix of dimension
// n, A = Σ_k λ_k q_k q_kᵀ.
//
// a holds the matrix, row by row; Symmetric reads only the lower triangle. It overwrites row k of a with the
// orthonormal q_k, and returns the λ_k, not sorted. Every entry and its square must be finite. ok is false if the
// iteration does not converge; no such matrix is known.
//
// Householder reflections turn the matrix into a tridiagonal one. The implicit QL algorithm with Wilkinson's shift
// turns that into a diagonal one, as in EISPACK's tred2 and tql2. ‖A − QΛQᵀ‖ is a few times n·2⁻⁵³‖A‖. Every product is
// rounded before it is added.
//
// Cost: about 9n³ operations, one allocation of 2n numbers.
// Source: Martin, Reinsch, Wilkinson, "Householder's Tridiagonalization of a Symmetric
// Matrix"; Bowdler, Martin, Reinsch, Wilkinson, "The QR and QL Algorithms for Symmetric
// Matrices" (Handbook for Automatic Computation II).
func Symmetric(a []float64, n int) (values []float64, ok bool) {
	work := make([]float64, 2*n)
	d, e := work[:n:n], work[n:]
	tridiagonalise(a, d, e)
	return d, diagonalise(a, d, e)
}

// tridiagonalise overwrites a with the transpose of Q, where A = QTQᵀ. It writes T's diagonal to d and T's subdiagonal
// to e[1:].
func tridiagonalise(a, d, e []float64) {
	reduce(a, d, e)
	assemble(a, d)
	e[0] = 0
}

// reduce writes T's subdiagonal to e[1:] and T's diagonal to the diagonal of a. It leaves the reflections whose product
// is Q in the rows of a before the diagonal, and their h in d.
func reduce(a, d, e []float64) {
	n := len(d)
	row := func(i int) []float64 { return a[i*n : (i+1)*n] }
	// Rows are handled from the last one up. A reflection maps row i to its last entry before the diagonal. The vector
	// v of the reflection stays in the row; d holds its h = ‖v‖²/2.
	for i := n - 1; i > 0; i-- {
		v := row(i)[:i]
		var scale float64
		for _, x := range v {
			scale = max(scale, math.Abs(x))
		}
		var h float64
		if i > 1 && scale > 0 {
			for k := range v {
				v[k] /= scale
				h += float64(v[k] * v[k])
			}
		}
		if i == 1 || h-float64(v[i-1]*v[i-1]) <= 0 {
			// All entries before the subdiagonal are 0.
			e[i] = v[i-1]
			if i > 1 && scale > 0 {
				e[i] *= scale
			}
			d[i] = 0
			continue
		}
		f := v[i-1]
		g := -math.Copysign(math.Sqrt(h), f)
		e[i] = scale * g
		h -= float64(f * g)
		v[i-1] = f - g
		// p = Av/h, from the lower triangle; K = vᵀp/2h; A ← A − v(p−Kv)ᵀ − (p−Kv)vᵀ.
		p := e[:i]
		clear(p)
		for j := range i {
			r, x := row(j)[:j+1], v[j]
			sum := float64(r[j] * x)
			for k, y := range r[:j] {
				sum += float64(y * v[k])
				p[k] += float64(y * x)
			}
			p[j] += sum
		}
		var k float64
		for j := range p {
			p[j] /= h
			k += float64(p[j] * v[j])
		}
		k /= h + h
		for j := range p {
			p[j] -= float64(k * v[j])
		}
		for j := range i {
			r, x, y := row(j)[:j+1], v[j], p[j]
			for k := range r {
				r[k] -= float64(x*p[k]) + float64(y*v[k])
			}
		}
		d[i] = h
	}
}

// assemble overwrites the reflections that reduce left in a with the transpose of their product Q = H_{n−1}…H_1, and d
// with T's diagonal. It starts with the small reflections. A row of a is a column of Q, so all loops run along rows.
// The reflection of step i acts on the first i coordinates.
func assemble(a, d []float64) {
	n := len(d)
	row := func(i int) []float64 { return a[i*n : (i+1)*n] }
	for i := range n {
		v := row(i)
		if h := d[i]; h != 0 {
			// Q's leading i×i block is stored, transposed, in rows 0…i−1.
			for j := range i {
				r := row(j)[:i]
				var g float64
				for k, x := range r {
					g += float64(x * v[k])
				}
				g /= h
				for k := range r {
					r[k] -= float64(g * v[k])
				}
			}
		}
		d[i] = v[i]
		clear(v[:i])
		v[i] = 1
		for j := range i {
			row(j)[i] = 0
		}
	}
}

// diagonalise replaces T in d by its eigenvalues, and applies the rotations to the rows of q. An eigenvalue takes about
// two iterations.
func diagonalise(q, d, e []float64) (ok bool) {
	const most = 60
	n := len(d)
	copy(e, e[1:])
	e[n-1] = 0
	// An entry below 2⁻⁵³ of the largest entries counts as 0.
	var size float64
	for l := range n {
		size = max(size, math.Abs(d[l])+math.Abs(e[l]))
	}
	for l := range n {
		for iteration := 0; ; iteration++ {
			m := l
			for math.Abs(e[m]) > 0x1p-53*size {
				m++ // e[n−1] is 0
			}
			if m == l {
				break
			}
			if iteration == most {
				return false
			}
			// Shift by the eigenvalue of the leading 2×2 block.
			g := (d[l+1] - d[l]) / (2 * e[l])
			r := length(g, 1)
			g = d[m] - d[l] + e[l]/(g+math.Copysign(r, g))
			s, c, p := 1.0, 1.0, 0.0
			split := false
			for i := m - 1; i >= l; i-- {
				f, b := float64(s*e[i]), float64(c*e[i])
				r = length(f, g)
				if e[i+1] = r; r == 0 {
					// Deflate.
					d[i+1] -= p
					e[m] = 0
					split = true
					break
				}
				s, c = f/r, g/r
				g = d[i+1] - p
				r = float64((d[i]-g)*s) + float64(float64(2*c)*b)
				p = float64(s * r)
				d[i+1] = g + p
				g = float64(c*r) - b
				rotate(q[i*n:(i+1)*n], q[(i+1)*n:(i+2)*n], c, s)
			}
			if !split {
				d[l] -= p
				e[l] = g
				e[m] = 0
			}
		}
	}
	return true
}

// rotate replaces the rows x and y by cx − sy and sx + cy.
func rotate(x, y []float64, c, s float64) {
	y = y[:len(x)]
	for k, u := range x {
		v := y[k]
		y[k] = float64(s*u) + float64(c*v)
		x[k] = float64(c*u) - float64(s*v)
	}
}

// length returns √(a²+b²) without overflow. math.Hypot gives different last bits on different processors.
func length(a, b float64) float64 {
	a, b = math.Abs(a), math.Abs(b)
	if a < b {
		a, b = b, a
	}
	if b == 0 {
		return a
	}
	r := b / a
	return a * math.Sqrt(1+float64(r*r))
}
