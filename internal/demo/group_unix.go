//go:build unix

package demo

import (
	"os/exec"
	"syscall"
)

// ownGroup puts a process into its own group, so that an interrupt at the terminal does not reach it. Its parent ends
// it.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
