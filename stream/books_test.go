package stream_test

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/ledger"
)

// These functions read a state directory's ledger as commands do.

func readPopulations(dir, stream string, groups []int) ([]ledger.PopulationSpent, error) {
	b, err := ledger.ReadBooks(dir)
	if err != nil {
		return nil, err
	}
	return b.Populations(stream, groups)
}

func readCharged(dir string, s *config.Stream, partition int) (float64, error) {
	b, err := ledger.ReadBooks(dir)
	if err != nil {
		return 0, err
	}
	return b.Charged(s, partition)
}
