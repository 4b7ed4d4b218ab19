package plan

import (
	"fmt"
	"io"

	"github.com/streamdp/streamdp/adam"
	"github.com/streamdp/streamdp/config"
)

type adamPlan struct{ *adam.Estimator }

func (e adamPlan) expect(t uint64) any { return e.Expect(t) }

// ofAdam fills in the noise of the moments from which Adam computes its updates.
func (p *Plan) ofAdam(s *config.Stream, ask Options) error {
	p.tables = p.printAdam
	configured, err := adam.New(*s.Adam, s.Params())
	if err != nil {
		return err
	}
	p.compare([]string{"identity", "sqrt", "blt"}, ask.Factorizations, adamPlan{configured},
		func(kind string) (planned, error) {
			c := *s.Adam
			c.Factorization = kind
			e, err := adam.New(c, s.Params())
			return adamPlan{e}, err
		})
	return nil
}

// printAdam writes the tables of ofAdam.
func (p *Plan) printAdam(w io.Writer) error {
	for _, v := range []struct {
		title string
		of    func(adam.Errors) float64
	}{
		{"learning rate", func(e adam.Errors) float64 { return e.Rate }},
		{"noise of a coordinate of the first moment", func(e adam.Errors) float64 { return e.First }},
		{"noise of a coordinate of the second moment", func(e adam.Errors) float64 { return e.Second }},
		{"bias of the second moment", func(e adam.Errors) float64 { return e.Bias }},
	} {
		if err := printTable(w, p, v.title, p.Factorizations, v.of); err != nil {
			return err
		}
	}
	fmt.Fprintln(w, "\n  * marks what the stream uses")
	printMissing(w, p.Factorizations)
	return nil
}
