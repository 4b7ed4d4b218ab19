//go:build !linux

package main

// keepSecrets has no portable form. docs/operations.md says how an operator can forbid core
// dumps.
func keepSecrets() {}
