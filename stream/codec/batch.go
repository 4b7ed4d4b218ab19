package codec

import (
	"runtime"
	"sync"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/schema"
	"github.com/streamdp/streamdp/internal/slab"
)

// Batch is one response of the broker and the rows decoded from it. A caller uses one Batch for many responses. Its
// memory comes from pools that all batches share; Release returns it.
type Batch struct {
	kafka.Chunk
	// Reasons has the reason why each record gave no row, or [Decoded].
	Reasons []Reason
	// Tags has the tag of each record's user key: the zero tag if it has none, and persons.Away if the key belongs to
	// another partition. nil if no tags are made, see [Decoder.TagUsers].
	Tags []persons.Tag
	// Schemas has the schema id in each record's frame, or -1 if it has no frame. nil if records have no frames.
	Schemas []int32

	columns int       // length of a row
	rows    []float64 // rows, one per record or, if places is set, one per record with a place
	// places has the index in rows of each record's row, −1 for a record without one. nil: row i belongs to record i.
	places []int
}

// Batches take their memory from these pools, and return it to them.
var (
	rowSlab    slab.Pool[float64]
	reasonSlab slab.Pool[Reason]
	placeSlab  slab.Pool[int]
	tagSlab    slab.Pool[persons.Tag]
	idSlab     slab.Pool[int32]
)

// Release returns the batch's memory to the pools. Its records and rows must not be used afterwards.
func (b *Batch) Release() {
	b.Chunk.Release()
	rowSlab.Put(b.rows)
	reasonSlab.Put(b.Reasons)
	placeSlab.Put(b.places)
	tagSlab.Put(b.Tags)
	idSlab.Put(b.Schemas)
	b.rows, b.Reasons, b.places, b.Tags, b.Schemas = nil, nil, nil, nil, nil
}

// RowBytes returns the memory that a batch needs for one record of format f.
func RowBytes(f Format) int {
	n := 8*f.Width() + 8 + 1
	if f.User != "" {
		n += len(persons.Tag{})
	}
	if f.Schemas != nil {
		n += 4
	}
	return n
}

// Decoder decodes batches. It splits a large batch among several goroutines; the rows do not depend on the split.
//
// A Decoder decodes one batch at a time.
type Decoder struct {
	format  Format
	columns int
	codecs  []Codec // one per worker; nil until it is first needed
	// least is the smallest size in bytes of a record that can have a row. No row is allocated for a smaller record.
	// Otherwise a batch of many small records would need memory for many rows, and a row may have a million numbers. 0:
	// every record gets a row.
	least int
	spare [][]float64 // one row per worker, used if a record has no row of its own
	// users has one element per worker, nil if no tags are made.
	users []*user
	// ids has the schemas to whose ids records refer; nil if records have no schema ids.
	ids *schemaIDs
}

// NewDecoder returns a decoder for records of format f. It decodes a large batch in up to `workers` goroutines, and in
// fewer if other decoders use the processors. It fails if [Format.Codec] fails.
func NewDecoder(f Format, workers int) (*Decoder, error) {
	c, err := f.Codec()
	if err != nil {
		return nil, err
	}
	d := &Decoder{format: f, columns: f.Width(), least: f.least(), codecs: make([]Codec, max(1, workers))}
	if f.Schemas != nil && f.schematic() {
		d.ids = &schemaIDs{resolver: f.Schemas, known: map[int32]*schema.Schema{}}
	}
	d.codecs[0] = d.share(c)
	d.spare = make([][]float64, len(d.codecs))
	return d, nil
}

// share makes a codec look up schemas in the decoder's ids.
func (d *Decoder) share(c Codec) Codec {
	if of, ok := c.(*schemaCodec); ok && d.ids != nil {
		of.ids = d.ids
	}
	return c
}

// forget makes all codecs drop everything that they computed from schemas.
func (d *Decoder) forget() {
	for _, c := range d.codecs {
		if of, ok := c.(*schemaCodec); ok {
			of.forget()
		}
	}
	for _, u := range d.users {
		if of, ok := u.alone.(*schemaCodec); ok {
			of.forget()
		}
	}
}

// TagUsers makes Decode also set the tags of batches. A tag is a hash of the user key under the given secret key; the
// raw user keys do not leave the decoder. The same secret key gives the same tags in all decoders.
//
// Errors: the errors of [Format.Codec], if the format has no valid place for a user key.
func (d *Decoder) TagUsers(key *[persons.KeyBytes]byte) error {
	users := make([]*user, len(d.codecs))
	for w := range users {
		u, err := newUser(d.format, key)
		if err != nil {
			return err
		}
		if u.alone != nil {
			d.share(u.alone)
		}
		users[w] = u
	}
	d.users = users
	return nil
}

// OnlyAtHome makes Decode set the tag persons.Away for records whose user key belongs to another partition according to
// the default partitioner of Kafka's Java producer. So nobody counts as a person in two partitions. partitions is the
// number of partitions of the topic. Call OnlyAtHome after TagUsers; the user keys must be record keys.
func (d *Decoder) OnlyAtHome(partition, partitions int) {
	for _, u := range d.users {
		u.partition, u.partitions = partition, max(1, partitions)
	}
}

// working has an element for each goroutine that decodes. All decoders of a process together use at most one goroutine
// per processor.
var working = make(chan struct{}, runtime.GOMAXPROCS(0))

// parallelBytes is the batch size from which starting a second goroutine pays off.
const parallelBytes = 64 << 10

// Decode decodes b.Records and sets the rows and reasons of b.
func (d *Decoder) Decode(b *Batch) {
	b.columns = d.columns
	n := len(b.Records)
	rows := n
	placeSlab.Put(b.places)
	b.places = nil
	if d.least > 0 {
		b.places, rows = placeSlab.Get(n)[:n], 0
		for i := range b.Records {
			b.places[i] = -1
			if len(b.Records[i].Value) >= d.least {
				b.places[i] = rows
				rows++
			}
		}
	}
	if cap(b.rows) < rows*d.columns {
		rowSlab.Put(b.rows)
		b.rows = rowSlab.Get(rows * d.columns)
	}
	if cap(b.Reasons) < n {
		reasonSlab.Put(b.Reasons)
		b.Reasons = reasonSlab.Get(n)
	}
	b.rows, b.Reasons = b.rows[:rows*d.columns], b.Reasons[:n]
	if d.users != nil {
		if cap(b.Tags) < n {
			tagSlab.Put(b.Tags)
			b.Tags = tagSlab.Get(n)
		}
		b.Tags = b.Tags[:n]
	} else if b.Tags != nil {
		tagSlab.Put(b.Tags)
		b.Tags = nil
	}
	if d.ids != nil {
		if cap(b.Schemas) < n {
			idSlab.Put(b.Schemas)
			b.Schemas = idSlab.Get(n)
		}
		b.Schemas = b.Schemas[:n]
		if d.ids.learn(b) { // learn may wait for the registry
			d.forget()
		}
	} else if b.Schemas != nil {
		idSlab.Put(b.Schemas)
		b.Schemas = nil
	}
	working <- struct{}{}
	workers := 1
	for free := true; free && workers < min(len(d.codecs), 1+b.Bytes/parallelBytes); {
		select {
		case working <- struct{}{}:
			workers++
		default:
			free = false
		}
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() {
			d.part(b, w, n*w/workers, n*(w+1)/workers)
			<-working
		})
	}
	d.part(b, 0, 0, n/workers)
	<-working
	wg.Wait()
}

// part makes worker w decode the records from, from+1, …, to−1.
func (d *Decoder) part(b *Batch, w, from, to int) {
	if d.codecs[w] == nil {
		c, _ := d.format.Codec() // cannot fail: NewDecoder has tried it
		d.codecs[w] = d.share(c)
	}
	for i := from; i < to; i++ {
		row := b.place(i)
		if row == nil {
			if d.spare[w] == nil {
				d.spare[w] = make([]float64, d.columns)
			}
			row = d.spare[w]
		}
		if b.Records[i].TooLarge {
			begin(row, d.columns)
			b.Reasons[i] = TooLarge
			if d.users != nil {
				b.Tags[i] = persons.Tag{}
			}
			continue
		}
		b.Reasons[i] = d.codecs[w].Decode(&b.Records[i], row)
		if d.users != nil {
			b.Tags[i] = d.users[w].tag(&b.Records[i], d.codecs[w], b.Reasons[i])
		}
	}
}

// place returns the memory for the row of record i, or nil if the record has none.
func (b *Batch) place(i int) []float64 {
	if b.places != nil {
		if i = b.places[i]; i < 0 {
			return nil
		}
	}
	return b.rows[i*b.columns : (i+1)*b.columns]
}

// Tag returns the tag of record i, or the zero tag if it has no user key or no tags are made.
func (b *Batch) Tag(i int) persons.Tag {
	if b.Tags == nil {
		return persons.Tag{}
	}
	return b.Tags[i]
}

// TagsFrom returns the tags of at most n records from record i on, or nil if no tags are made.
func (b *Batch) TagsFrom(i, n int) []persons.Tag {
	if b.Tags == nil {
		return nil
	}
	return b.Tags[i:min(i+n, len(b.Tags))]
}

// Row returns the row of record i, or nil if the record gave none. The row is valid until the batch is decoded again.
func (b *Batch) Row(i int) []float64 {
	if b.Reasons[i] != Decoded {
		return nil
	}
	return b.place(i)
}
