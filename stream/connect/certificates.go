package connect

import (
	"context"
	"log/slog"
	"time"

	"github.com/streamdp/streamdp/internal/credentials"
)

// RotationEvery is how often the daemon looks whether the files of its certificates were
// replaced.
const RotationEvery = 10 * time.Second

// Certificates are the files of TLS that a daemon uses, by their tables.
type Certificates struct {
	Every time.Duration
	files map[string]*credentials.Rotation
}

// Add has the files of a table looked after. nil: it has none.
func (c *Certificates) Add(table string, files *credentials.Rotation) {
	if files == nil {
		return
	}
	if c.files == nil {
		c.files = map[string]*credentials.Rotation{}
	}
	c.files[table] = files
}

// Show tells the metrics when the certificates end.
func (c *Certificates) Show(expiry func(table string, until time.Time)) {
	for table, files := range c.files {
		expiry(table, files.Until())
	}
}

// Watch takes new certificates until the context ends. Connections that exist keep theirs.
func (c *Certificates) Watch(ctx context.Context, log *slog.Logger, expiry func(table string, until time.Time)) {
	if len(c.files) == 0 {
		return
	}
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for table, files := range c.files {
			changed, err := files.Look()
			switch {
			case err != nil:
				log.Warn("new certificate files cannot be used; the former ones stay in force", "table", table, "error", err.Error())
			case changed:
				log.Info("certificates replaced", "table", table)
			}
		}
		c.Show(expiry)
	}
}
