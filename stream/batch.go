package stream

import (
	"runtime"
	"sync"

	"streamdp/internal/kafka"
)

// batch is one response of the broker and the rows in it. It is used again and
// again, and allocates nothing once it has grown.
type batch struct {
	kafka.Chunk
	rows    []float64 // one row a record
	reasons []Reason
}

// decoder decodes batches, large ones in parallel; what it writes does not
// depend on how.
type decoder struct {
	columns int
	codecs  []Codec // one a worker
}

// newDecoder returns a decoder with workers ready.
func newDecoder(codec string, columns []string) (*decoder, error) {
	d := &decoder{columns: len(columns)}
	for range runtime.GOMAXPROCS(0) {
		c, err := NewCodec(codec, columns)
		if err != nil {
			return nil, err
		}
		d.codecs = append(d.codecs, c)
	}
	return d, nil
}

// parallelBytes is the size from which a batch is worth a second goroutine.
const parallelBytes = 64 << 10

func (d *decoder) decode(b *batch) {
	n := len(b.Records)
	// With room to spare: responses differ a little in their number of records.
	if cap(b.rows) < n*d.columns {
		b.rows = make([]float64, n*d.columns+n*d.columns/8)
	}
	if cap(b.reasons) < n {
		b.reasons = make([]Reason, n+n/8)
	}
	b.rows, b.reasons = b.rows[:n*d.columns], b.reasons[:n]
	workers := min(len(d.codecs), 1+b.Bytes/parallelBytes)
	if workers == 1 {
		d.part(b, d.codecs[0], 0, n)
		return
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { d.part(b, d.codecs[w], n*w/workers, n*(w+1)/workers) })
	}
	wg.Wait()
}

func (d *decoder) part(b *batch, c Codec, from, to int) {
	for i := from; i < to; i++ {
		b.reasons[i] = c.Decode(&b.Records[i], b.rows[i*d.columns:(i+1)*d.columns])
	}
}

// row returns the row of a record, nil where it gave none.
func (b *batch) row(i, columns int) []float64 {
	if b.reasons[i] != Decoded {
		return nil
	}
	return b.rows[i*columns : (i+1)*columns]
}
