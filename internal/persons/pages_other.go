//go:build !linux

package persons

// inLargePages does nothing: other systems choose the size of pages themselves.
func inLargePages([]slot) {}
