package persons

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/streamdp/streamdp/internal/testing/rival"
)

// BenchmarkPersons has maps of one and of ten million persons who contributed once each. It measures look-ups in random
// order, compared with Go's map; the memory of the table; and a start, which reads and hashes the journal, compared
// with hashing alone.
func BenchmarkPersons(b *testing.B) {
	for _, users := range []int{1e6, 1e7} {
		r := Rule{Cap: 1000, Separation: 1, PerStep: 1, Users: uint64(users)}
		var tags []Tag
		var m *Map
		var disk *simDisk
		var at Position
		fill := func(b *testing.B) {
			if m != nil {
				return
			}
			tagger := NewTagger(new([KeyBytes]byte))
			disk, m = newSimDisk(), mustMap(b, r)
			j, err := OpenJournal(disk, simDir, simPrefix, m, Position{})
			if err != nil {
				b.Fatal(err)
			}
			m.Open(1)
			for i := range users {
				tags = append(tags, tagger.Tag(fmt.Append(nil, i)))
				m.Take(tags[i])
			}
			m.Close()
			p, err := j.Append()
			if err != nil {
				b.Fatal(err)
			}
			at = Position{Step: p.Step, Seen: p.Seen, Segments: slices.Clone(p.Segments)}
			rng := rand.New(rand.NewPCG(1, 2))
			rng.Shuffle(users, func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
		}
		b.Run(fmt.Sprintf("take/%d", users), func(b *testing.B) {
			fill(b)
			type known struct{ last, steps uint32 }
			plain := make(map[Tag]known, users)
			for _, tag := range tags {
				plain[tag] = known{1, 1}
			}
			m.Open(m.Step() + 1)
			const turn = 64
			ours, theirs := 0, 0
			rival.Compare(b, turn, func() {
				if ours += turn; ours+turn > users {
					ours = 0
					m.Open(m.Step() + 1)
				}
				m.fresh = m.fresh[:0] // drops the entries, as a commit does
				m.Warm(tags[ours:][:turn])
				for _, tag := range tags[ours:][:turn] {
					m.Take(tag)
				}
			}, "map", func() {
				if theirs += turn; theirs+turn > users {
					theirs = 0
				}
				for _, tag := range tags[theirs:][:turn] {
					k := plain[tag]
					plain[tag] = known{k.last + 1, k.steps + 1}
				}
			})
			b.ReportMetric(float64(r.Memory())/float64(users), "bytes/person")
		})
		b.Run(fmt.Sprintf("start/%d", users), func(b *testing.B) {
			fill(b)
			file := disk.names[fmt.Sprint(simDir, "/", simPrefix, 1)].data
			var sum byte
			rival.Compare(b, users, func() {
				if _, err := OpenJournal(disk, simDir, simPrefix, mustMap(b, r), at); err != nil {
					b.Fatal(err)
				}
			}, "sha256", func() {
				h := sha256.Sum256(file)
				sum ^= h[0]
			})
			if sum == 1 {
				b.Log(sum)
			}
		})
	}
}

func mustMap(t testing.TB, r Rule) *Map {
	t.Helper()
	m, err := NewMap(r)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
