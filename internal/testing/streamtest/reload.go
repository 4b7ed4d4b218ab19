package streamtest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream"
)

// Configuration returns the path of the rig's configuration file, which Write writes.
func (r *Rig) Configuration() string { return filepath.Join(r.Dir, "streamdp.toml") }

// Reloadable makes a daemon read its configuration from the rig's configuration file.
func (r *Rig) Reloadable(o *stream.Options) {
	o.Load = func() (*config.Config, error) { return config.Load(r.Configuration()) }
}

// Write writes the configuration file with these tables of streams.
func (r *Rig) Write(tables ...string) {
	r.T.Helper()
	now := *r
	now.Toml = strings.Join(tables, "")
	fixtures.Must(r.T, os.WriteFile(r.Configuration(), now.Text(), 0o600))
}
