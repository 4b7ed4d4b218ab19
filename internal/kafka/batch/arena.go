package batch

import "github.com/streamdp/streamdp/internal/slab"

// minBuffer is the least that an arena takes for records out of compressed batches.
const minBuffer = 4 << 10

// byteSlab is what arenas fill, and give back.
var byteSlab slab.Pool[byte]

// Arena is the memory of records that came out of compressed batches. They lie in it until
// Release. The zero value is empty. It comes from memory that all arenas share.
type Arena struct {
	buf   []byte
	spent [][]byte // what buf was before
}

// Take returns n bytes of whatever content. A buffer that is full is left to the records in
// it, never moved.
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

// Release gives all of it back: nothing that was taken may be used any more.
func (a *Arena) Release() {
	for _, b := range append(a.spent, a.buf) {
		byteSlab.Put(b)
	}
	a.spent, a.buf = nil, nil
}
