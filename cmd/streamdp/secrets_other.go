//go:build !linux

package main

// keepSecrets has no portable form; docs/operations.md says how to forbid core
// dumps from outside.
func keepSecrets() {}
