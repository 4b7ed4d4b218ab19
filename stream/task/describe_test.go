package task

import (
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/dryrun"
)

// TestDescribe: the description of a stream agrees with its behaviour.
func TestDescribe(t *testing.T) {
	t.Parallel()
	c, err := config.Parse("t.toml",
		[]byte("[kafka]\nbrokers = [\"127.0.0.1:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n"+
			fixtures.MachineStream))
	fixtures.Must(t, err)
	d, err := dryrun.Describe(c.Streams[0])
	fixtures.Must(t, err)
	m := newMachine(t, fixtures.MachineStream, 1).all(mutateLog(1)[:700], 700)
	largest := 0
	for _, p := range m.releases {
		largest = max(largest, len(p.Value))
	}
	state, err := m.p.applier.core.AppendState(nil)
	fixtures.Must(t, err)
	if int64(largest) > d.ReleaseBytes || d.ReleaseBytes > 3*int64(largest) {
		t.Errorf("releases have up to %d bytes, but the description says %d", largest, d.ReleaseBytes)
	}
	if n := int64(len(state)); n > d.StateBytes+1024 || d.StateBytes > 2*n+1024 {
		t.Errorf("the state has %d bytes, but the description says %d", n, d.StateBytes)
	}
}
