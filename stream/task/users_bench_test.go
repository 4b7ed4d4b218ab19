package task

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/persons"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/rival"
	"github.com/streamdp/streamdp/stream/codec"
	"github.com/streamdp/streamdp/stream/core"
	"github.com/streamdp/streamdp/stream/state"
)

// BenchmarkUsers measures the cost of protecting persons between fetch and commit. It decodes and adds records of 16
// packed numbers with a user key, of a million persons in random order, and compares this with records without a user
// key. There are enough batches to drive the table's entries out of the cache between rounds.
func BenchmarkUsers(b *testing.B) {
	const records, batches, d = 4096, 100, 16
	rng := rand.New(rand.NewPCG(20, 20))
	values := make([][]byte, records)
	for i := range values {
		for range d {
			values[i] = binary.LittleEndian.AppendUint64(values[i], math.Float64bits(rng.NormFloat64()))
		}
	}
	lists := make([][]kafka.Record, batches)
	for k := range lists {
		for i, value := range values {
			lists[k] = append(lists[k],
				kafka.Record{Offset: int64(i), Key: fmt.Appendf(nil, "%012x", rng.Uint64N(1e6)), Value: value})
		}
	}
	columns := make([]string, d)
	for i := range columns {
		columns[i] = fmt.Sprint("c", i)
	}
	quoted, _ := json.Marshal(columns)
	toml := fixtures.With(fixtures.MachineStream, `codec = "json", columns = ["a", "b", "c"]`,
		`codec = "float64", columns = `+string(quoted),
		"centre = [1.0, 0.0, -2.0]\nscale  = [0.5, 4.0, 1.5]\n", "", "step   = 7", "step = 1048576")
	run := func(user string) func() {
		m := newMachine(b, fixtures.With(toml, "step = 1048576\n", "step = 1048576\n"+user), 1)
		s := m.r.S
		decoder, err := codec.NewDecoder(core.FormatOf(s), 1)
		fixtures.Must(b, err)
		c := m.p.applier.core
		var journal *persons.Journal
		if user != "" {
			key := c.UserKey()
			fixtures.Must(b, decoder.TagUsers(&key))
			journal, err = persons.OpenJournal(state.UserFiles{Disk: noDisk{}}, "", "", c.Persons()[0],
				persons.Position{})
			fixtures.Must(b, err)
		}
		var batch codec.Batch
		at, turn := c.First(), 0
		next := func() {
			list := lists[turn%batches]
			turn++
			batch.Records = list
			decoder.Decode(&batch)
			for i := range list {
				if i&63 == 0 {
					c.Warm(batch.TagsFrom(i, 64))
				}
				c.AddOf(at, batch.Row(i), batch.Tag(i))
				if at++; at == c.End() {
					_, err := c.Close()
					fixtures.Must(b, err)
					if journal != nil {
						_, err = journal.Append()
						fixtures.Must(b, errors.Join(err, journal.Committed()))
					}
				}
			}
		}
		for range 3 * batches { // then nearly all persons are known
			next()
		}
		return next
	}
	with := run("user = { key = \"record-key\", cap = 1000, per_step = 255, max_users = 1000000 }\n")
	rival.Compare(b, records, with, "without", run(""))
}
