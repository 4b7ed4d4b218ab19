package stream_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/rival"
	"github.com/streamdp/streamdp/stream/state"
)

// timedDisk measures the total time of syncs.
type timedDisk struct {
	state.Disk
	files, directories time.Duration
}

func (d *timedDisk) Create(name string) (state.File, error) {
	f, err := d.Disk.Create(name)
	return timedFile{f, d}, err
}

func (d *timedDisk) SyncDir(dir string) error {
	defer func(begun time.Time) { d.directories += time.Since(begun) }(time.Now())
	return d.Disk.SyncDir(dir)
}

type timedFile struct {
	state.File
	of *timedDisk
}

func (f timedFile) Sync() error {
	defer func(begun time.Time) { f.of.files += time.Since(begun) }(time.Now())
	return f.File.Sync()
}

// BenchmarkCommit makes a checkpoint durable, and compares this with two other methods. One writes the same bytes over
// a file and syncs it; a crash could leave that file half written. The other is as safe as ours: it writes a new file,
// syncs it, renames it over the old one, and syncs the directory. The benchmark also reports the share of the time that
// the syncs of file and directory take.
func BenchmarkCommit(b *testing.B) {
	for _, kilobytes := range []int{10, 100} {
		b.Run(fmt.Sprintf("%dkB", kilobytes), func(b *testing.B) {
			dir := b.TempDir()
			d := &timedDisk{Disk: state.OS{}}
			s, err := state.Open(d, filepath.Join(dir, "task"), nil)
			fixtures.Must(b, err)
			c := &state.Checkpoint{Epoch: 1, OutputTopic: "out", Build: "bench", State: make([]byte, kilobytes<<10)}
			f, err := os.Create(filepath.Join(dir, "rival"))
			fixtures.Must(b, err)
			defer f.Close()
			data := c.Encode(nil)
			var whole time.Duration
			d.files, d.directories = 0, 0
			rival.Compare(b, 1, func() {
				begun := time.Now()
				c.Step++
				fixtures.Must(b, s.Commit(c))
				whole += time.Since(begun)
			}, "write+fsync", func() {
				_, err := f.WriteAt(data, 0)
				fixtures.Must(b, err)
				fixtures.Must(b, f.Sync())
			})
			b.ReportMetric(float64(d.files)/float64(whole), "file-sync-share")
			b.ReportMetric(float64(d.directories)/float64(whole), "dir-sync-share")
		})
		b.Run(fmt.Sprintf("%dkB-safe", kilobytes), func(b *testing.B) {
			dir := b.TempDir()
			s, err := state.Open(state.OS{}, filepath.Join(dir, "task"), nil)
			fixtures.Must(b, err)
			c := &state.Checkpoint{Epoch: 1, OutputTopic: "out", Build: "bench", State: make([]byte, kilobytes<<10)}
			data := c.Encode(nil)
			var at state.OS
			name := filepath.Join(dir, "task", "rival")
			rival.Compare(b, 1, func() {
				c.Step++
				fixtures.Must(b, s.Commit(c))
			}, "replace", func() {
				f, err := at.Create(name + ".tmp")
				fixtures.Must(b, state.Write(f, err, data))
				fixtures.Must(b, at.Rename(name+".tmp", name))
				fixtures.Must(b, at.SyncDir(filepath.Dir(name)))
			})
		})
	}
}
