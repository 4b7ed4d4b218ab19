package batch

import "github.com/streamdp/streamdp/internal/slab"

// minBuffer is the smallest buffer that an arena allocates.
const minBuffer = 4 << 10

// byteSlab lends the buffers of arenas.
var byteSlab slab.Pool[byte]

// Arena holds the bytes of records from compressed batches until Release. The zero value is empty. Its memory comes
// from a pool that all arenas share.
type Arena struct {
	buf   []byte
	spent [][]byte // earlier, full buffers
}

// Take returns n bytes with arbitrary content. A full buffer is never moved, because records refer to it.
func (a *Arena) Take(n int) []byte {
	if cap(a.buf)-len(a.buf) < n {
		if a.buf != nil {
			a.spent = append(a.spent, a.buf)
		}
		a.buf = byteSlab.Get(max(2*cap(a.buf), n, minBuffer))
	}
	i := len(a.buf)
	a.buf = a.buf[:i+n]
	return a.buf[i : i+n : i+n]
}

// GiveBack returns the last n bytes that were taken.
func (a *Arena) GiveBack(n int) {
	a.buf = a.buf[:len(a.buf)-n]
}

// Release gives all memory back. Bytes that were taken must not be used any more.
func (a *Arena) Release() {
	for _, b := range append(a.spent, a.buf) {
		byteSlab.Put(b)
	}
	a.spent, a.buf = nil, nil
}
