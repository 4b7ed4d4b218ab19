package stream

import (
	"github.com/streamdp/streamdp/config"
)

// What commands read of a state directory's ledger.

func readPopulations(dir, stream string, groups []int) ([]PopulationSpent, error) {
	b, err := ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Populations(stream, groups)
}

func readCharged(dir string, s *config.Stream, partition int) (float64, error) {
	b, err := ReadBooks(dir)
	if err != nil {
		return 0, err
	}
	return b.Charged(s, partition)
}
