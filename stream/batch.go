package stream

import (
	"runtime"
	"sync"

	"streamdp/config"
	"streamdp/internal/kafka"
)

// batch is one response of the broker and the rows in it. It is used again and
// again, and allocates nothing once it has grown.
type batch struct {
	kafka.Chunk
	rows    []float64 // one row a record, or one for each in places
	places  []int     // of each record's row among the rows, −1 without one; nil: its own
	reasons []Reason
}

// decoder decodes batches, large ones in parallel; what it writes does not
// depend on how.
type decoder struct {
	columns int
	codecs  []Codec // one a worker
	// least is the number of bytes below which a record cannot have a row of its
	// own; 0: all have one. With it many small records do not ask for many rows
	// of a million numbers.
	least int
	spare [][]float64 // one a worker, for records without one
}

// newDecoder returns a decoder of a stream's records with workers ready.
func newDecoder(s *config.Stream) (*decoder, error) {
	d := &decoder{columns: width(s)}
	if s.Gradients() {
		switch s.Input.Codec {
		case "float64":
			d.least = 8 * s.Adam.Dim
		case "float32":
			d.least = 4 * s.Adam.Dim
		default:
			d.least = 2*s.Adam.Dim + 1 // [0,0]
		}
	}
	for range runtime.GOMAXPROCS(0) {
		c, err := codecOf(s)
		if err != nil {
			return nil, err
		}
		d.codecs = append(d.codecs, c)
	}
	d.spare = make([][]float64, len(d.codecs))
	return d, nil
}

// parallelBytes is the size from which a batch is worth a second goroutine.
const parallelBytes = 64 << 10

func (d *decoder) decode(b *batch) {
	n := len(b.Records)
	rows := n
	b.places = nil
	if d.least > 0 {
		b.places, rows = make([]int, n), 0
		for i := range b.Records {
			b.places[i] = -1
			if len(b.Records[i].Value) >= d.least {
				b.places[i] = rows
				rows++
			}
		}
	}
	// With room to spare: responses differ a little in their number of records.
	if cap(b.rows) < rows*d.columns {
		b.rows = make([]float64, rows*d.columns+rows*d.columns/8)
	}
	if cap(b.reasons) < n {
		b.reasons = make([]Reason, n+n/8)
	}
	b.rows, b.reasons = b.rows[:rows*d.columns], b.reasons[:n]
	workers := min(len(d.codecs), 1+b.Bytes/parallelBytes)
	if workers == 1 {
		d.part(b, 0, 0, n)
		return
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() { d.part(b, w, n*w/workers, n*(w+1)/workers) })
	}
	wg.Wait()
}

// part has worker w decode records from … to−1.
func (d *decoder) part(b *batch, w, from, to int) {
	for i := from; i < to; i++ {
		row := b.place(i, d.columns)
		if row == nil {
			if d.spare[w] == nil {
				d.spare[w] = make([]float64, d.columns)
			}
			row = d.spare[w]
		}
		b.reasons[i] = d.codecs[w].Decode(&b.Records[i], row)
	}
}

// place returns where the row of a record stands, nil where it has none.
func (b *batch) place(i, columns int) []float64 {
	if b.places != nil {
		if i = b.places[i]; i < 0 {
			return nil
		}
	}
	return b.rows[i*columns : (i+1)*columns]
}

// row returns the row of a record, nil where it gave none.
func (b *batch) row(i, columns int) []float64 {
	if b.reasons[i] != Decoded {
		return nil
	}
	return b.place(i, columns)
}
