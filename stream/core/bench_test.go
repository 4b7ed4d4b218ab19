package core

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/testing/rival"
)

// BenchmarkEncode encodes a release with mean, second moment, covariance and their standard errors. It compares this
// with a copy of the bytes, and with a loop that only prints the numbers by strconv into one buffer.
func BenchmarkEncode(b *testing.B) {
	for _, form := range []string{"json", "base64"} {
		for _, d := range []int{3, 100} {
			s := goldenStream(b)
			s.Output.Encoding = form
			e, err := newEncoder(s, goldenManifest(b), goldenMechanism())
			must(b, err)
			source := rand.New(rand.NewPCG(1, 2))
			draw := func(n int) []float64 {
				x := make([]float64, n)
				for i := range x {
					x[i] = source.NormFloat64() / 100
				}
				return x
			}
			pairs := d * (d + 1) / 2
			rel := &dp.Release{Step: 7, Rows: 93, Values: []dp.Value{
				{Name: "mean", Shape: []int{d}, Data: draw(d), SE: draw(1)},
				{Name: "second_moment", Shape: []int{d, d}, Layout: "upper", Data: draw(pairs), SE: draw(pairs)},
				{Name: "covariance", Shape: []int{d, d}, Layout: "upper", Data: draw(pairs), SE: draw(pairs)},
			}}
			var size int
			encode := func() {
				all, err := e.encode(rel, 1600, 1700, nil)
				must(b, err)
				size = len(all[0].Value)
			}
			encode()
			from, to, printed := make([]byte, size), make([]byte, size), make([]byte, 0, size)
			b.Run(fmt.Sprintf("%s/d=%d/copy", form, d), func(b *testing.B) {
				rival.Compare(b, size, encode, "copy", func() { copy(to, from) })
			})
			b.Run(fmt.Sprintf("%s/d=%d/strconv", form, d), func(b *testing.B) {
				rival.Compare(b, size, encode, "strconv", func() {
					printed = printed[:0]
					for _, v := range rel.Values {
						for _, numbers := range [][]float64{v.Data, v.SE} {
							for _, x := range numbers {
								printed = append(strconv.AppendFloat(printed, x, 'f', -1, 64), ',')
							}
						}
					}
				})
			})
		}
	}
}
