package stream

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/testing/rival"
)

// timedDisk adds up how long syncs take.
type timedDisk struct {
	disk
	files, directories time.Duration
}

func (d *timedDisk) Create(name string) (file, error) {
	f, err := d.disk.Create(name)
	return timedFile{f, d}, err
}

func (d *timedDisk) SyncDir(dir string) error {
	defer func(begun time.Time) { d.directories += time.Since(begun) }(time.Now())
	return d.disk.SyncDir(dir)
}

type timedFile struct {
	file
	of *timedDisk
}

func (f timedFile) Sync() error {
	defer func(begun time.Time) { f.of.files += time.Since(begun) }(time.Now())
	return f.file.Sync()
}

// BenchmarkCommit makes a checkpoint durable, against the same bytes written over a file
// and synced, which a crash would leave half of; and against what is as safe: a new file,
// synced, renamed over the old one, and the directory synced. It also reports how much of the
// time the syncs of file and directory are.
func BenchmarkCommit(b *testing.B) {
	for _, kilobytes := range []int{10, 100} {
		b.Run(fmt.Sprintf("%dkB", kilobytes), func(b *testing.B) {
			dir := b.TempDir()
			d := &timedDisk{disk: osDisk{}}
			s, err := openStore(d, filepath.Join(dir, "task"), nil)
			must(b, err)
			c := &checkpoint{epoch: 1, outputTopic: "out", build: "bench", state: make([]byte, kilobytes<<10)}
			f, err := os.Create(filepath.Join(dir, "rival"))
			must(b, err)
			defer f.Close()
			data := c.encode(nil)
			var whole time.Duration
			d.files, d.directories = 0, 0
			rival.Compare(b, 1, func() {
				begun := time.Now()
				c.step++
				must(b, s.commit(c))
				whole += time.Since(begun)
			}, "write+fsync", func() {
				_, err := f.WriteAt(data, 0)
				must(b, err)
				must(b, f.Sync())
			})
			b.ReportMetric(float64(d.files)/float64(whole), "file-sync-share")
			b.ReportMetric(float64(d.directories)/float64(whole), "dir-sync-share")
		})
		b.Run(fmt.Sprintf("%dkB-safe", kilobytes), func(b *testing.B) {
			dir := b.TempDir()
			s, err := openStore(osDisk{}, filepath.Join(dir, "task"), nil)
			must(b, err)
			c := &checkpoint{epoch: 1, outputTopic: "out", build: "bench", state: make([]byte, kilobytes<<10)}
			data := c.encode(nil)
			var at osDisk
			name := filepath.Join(dir, "task", "rival")
			rival.Compare(b, 1, func() {
				c.step++
				must(b, s.commit(c))
			}, "replace", func() {
				f, err := at.Create(name + ".tmp")
				must(b, write(f, err, data))
				must(b, at.Rename(name+".tmp", name))
				must(b, at.SyncDir(filepath.Dir(name)))
			})
		})
	}
}
