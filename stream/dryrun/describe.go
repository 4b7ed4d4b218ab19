package dryrun

import (
	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/connect"
	"github.com/streamdp/streamdp/stream/core"
)

// Describe describes a stream: its guarantee, its noise and the memory it needs. It reads the stream's initial_file.
func Describe(s *config.Stream) (*core.Description, error) {
	initial, err := connect.InitialFile(s)
	if err != nil {
		return nil, err
	}
	return core.Describe(s, initial)
}
