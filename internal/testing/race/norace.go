//go:build !race

// Package race tells tests whether the race detector is on.
package race

// Enabled says that everything takes ten times as long, and memory several
// times as much.
const Enabled = false
