package plan

import (
	"fmt"
	"io"

	"github.com/streamdp/streamdp/config"
)

func (p *Plan) ofTally(*config.Stream, Options) error {
	p.tables = func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "\n  standard error of every sum: %.4g\n", p.Noise["tally"])
		return err
	}
	return nil
}
