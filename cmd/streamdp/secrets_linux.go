package main

import "golang.org/x/sys/unix"

// keepSecrets keeps keys, rows and noise out of core dumps, and inaccessible to debuggers of the same user. It ignores
// a failure, because a confined process may not be allowed to do this.
func keepSecrets() {
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
