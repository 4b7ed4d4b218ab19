//go:build !linux

package persons

// inLargePages does nothing on this system, which chooses the size of pages itself.
func inLargePages([]slot) {}
