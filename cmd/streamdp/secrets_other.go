//go:build !linux

package main

// keepSecrets does nothing on this system. docs/operations.md explains how an operator can forbid core dumps.
func keepSecrets() {}
