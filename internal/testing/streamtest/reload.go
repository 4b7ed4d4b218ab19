package streamtest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream"
)

// file is the path of a rig's configuration, which reload writes.
func (r *Rig) Configuration() string { return filepath.Join(r.Dir, "streamdp.toml") }

// Reloadable makes a daemon read its configuration from that file.
func (r *Rig) Reloadable(o *stream.Options) {
	o.Load = func() (*config.Config, error) { return config.Load(r.Configuration()) }
}

// Write writes the file, with these tables of streams.
func (r *Rig) Write(tables ...string) {
	r.T.Helper()
	now := *r
	now.Toml = strings.Join(tables, "")
	fixtures.Must(r.T, os.WriteFile(r.Configuration(), now.Text(), 0o600))
}
