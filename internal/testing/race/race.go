//go:build race

// Package race tells tests whether the race detector is on.
package race

// Enabled tells whether the race detector is on: then everything takes ten times as long and needs several times the
// memory.
const Enabled = true
