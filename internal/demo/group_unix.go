//go:build unix

package demo

import (
	"os/exec"
	"syscall"
)

// ownGroup makes a process that an interrupt at the terminal does not reach: who started it ends
// it.
func ownGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
