package core

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/persons"
)

// mergedPersonCore returns a merged core of the stream over three partitions, each from offset 100 on.
func mergedPersonCore(t testing.TB, s *config.Stream) *Core {
	t.Helper()
	over := *s
	over.Merge = true
	s = over.Over([]int{0, 1, 5})
	mech, err := NewMechanism(s, nil, nil)
	must(t, err)
	keys, err := dp.NewEpoch(&[32]byte{1}, &[32]byte{2}, "orders", 1, [16]byte{3}, [32]byte{4})
	must(t, err)
	m := &Manifest{Format: ManifestFormat, Stream: "orders", Epoch: 1, Source: Source{"cluster", "orders", Merged},
		Cost: mech.Cost(), Base: 300, Partitions: 6, Mechanism: mech.Name,
		Parts: []Part{{Partition: 0, Base: 100}, {Partition: 1, Base: 100}, {Partition: 5, Base: 100}}}
	c, err := New(s, m, []byte("manifest"), mech, keys)
	must(t, err)
	return c
}

// TestPersonsMerged: each partition of a merged epoch has its own map. The partition's rows are those that an epoch
// over it alone would use. They do not depend on records of the same persons in other partitions, on the order of
// reading, or on whether leaves are ahead. Nor do releases depend on the order of reading.
func TestPersonsMerged(t *testing.T) {
	t.Parallel()
	roomy := personStream(t, threeSteps)
	for name, s := range map[string]*config.Stream{
		"moments":     roomy,
		"full tables": personStream(t, strings.Replace(threeSteps, `"max_users":36`, `"max_users":2`, 1)),
		"windows": protected(t,
			"input = { topic = \"orders\", codec = \"float64\", columns = [\"a\", \"b\"] }\n"+
				"refit = { target = \"b\", clip_x = 1.0, clip_y = 1.0, window = 2, stride = 4 }", "replace",
			threeSteps),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(20, 8))
			var logs [3][]personRecord
			var want [3][][]float64
			for p := range logs {
				logs[p] = randomLog(rng, 36)
				for i := range logs[p] {
					logs[p][i].user = max(0, logs[p][i].user) // a record at each offset
				}
				one, rec := personCore(t, s)
				key := one.UserKey()
				tagger := persons.NewTagger(&key)
				for i := range logs[p] { // as in runLog, with the steps of the stream
					for int64(100+i) >= one.End() {
						_, err := one.Close()
						must(t, err)
					}
					one.AddOf(int64(100+i), rowOf(logs[p][i], i), tagOf(tagger, logs[p][i].user))
				}
				want[p] = rec.rows
			}
			var first []Message
			for range 4 {
				c := mergedPersonCore(t, s)
				key := c.UserKey()
				tagger := persons.NewTagger(&key)
				leaves := c.Leaves()
				closed := make([][]*Sum, len(leaves)) // sums that are not merged yet
				counted := 0
				var out []Message
				for c.Step() < 8 {
					p := rng.IntN(len(leaves))
					if leaf := leaves[p]; len(closed[p]) < 3 && leaf.Step() <= 8 {
						sum, err := c.NewSum()
						must(t, err)
						rec := &partRecorder{Part: sum.part}
						sum.part = rec
						leaf.Into(sum)
						for at := leaf.First(); at < leaf.End(); at++ {
							i := int(at - 100)
							leaf.AddOf(at, rowOf(logs[p][i], i), tagOf(tagger, logs[p][i].user))
							if !slices.Equal(rec.row, want[p][i]) || (rec.row == nil) != (want[p][i] == nil) {
								t.Fatalf("record %d of partition %d has the row %v, of the partition alone %v", i, p,
									rec.row, want[p][i])
							}
							if rec.row != nil {
								counted++
							}
						}
						sum.part = rec.Part
						closed[p] = append(closed[p], leaf.Close())
					}
					if slices.ContainsFunc(closed, func(sums []*Sum) bool { return len(sums) == 0 }) {
						continue
					}
					var sums []*Sum
					for p := range closed {
						sums = append(sums, closed[p][0])
						closed[p] = closed[p][1:]
					}
					got, err := c.Merge(sums, nil)
					must(t, err)
					out = append(out, got...)
					for p, m := range c.Persons() {
						if m.Closed() != c.Step() {
							t.Fatalf("the journal of partition %d was given step %d after step %d", p,
								m.Closed(), c.Step())
						}
					}
				}
				if counted < 12 {
					t.Errorf("%d records count", counted)
				}
				if first == nil {
					first = out
				}
				if len(out) != 8 ||
					!slices.EqualFunc(out, first, func(a, b Message) bool { return bytes.Equal(a.Value, b.Value) }) {
					t.Error("reading in another order gives other bytes")
				}
			}
		})
	}
	crowded := personStream(t, strings.Replace(threeSteps, `"max_users":36`, `"max_users":2`, 1))
	crowded.Merge = true
	if text := personsInWords(crowded, nil); !strings.Contains(text,
		"When the records of 2 persons of one partition count") {
		t.Errorf("a release says %s", text)
	}
}

// rowOf returns the row of record i of a log.
func rowOf(x personRecord, i int) []float64 {
	if !x.valid {
		return nil
	}
	return []float64{float64(x.user) / 10, 1 / float64(2+i)}
}

// tagOf returns the tag of a record's user.
func tagOf(tagger *persons.Tagger, user int) (tag persons.Tag) {
	if user > 0 {
		tag = tagger.Tag(fmt.Append(nil, "user ", user))
	}
	return tag
}
