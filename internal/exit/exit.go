// Package exit marks errors with what has to change: the command line or the configuration.
// cmd/streamdp ends with an exit code of its own for each of them. The packages that it uses
// mark their errors and know no codes.
package exit

import "fmt"

// Usage is the error of a wrong command line. Its text names the flag.
type Usage struct{ Err error }

func (e Usage) Error() string { return e.Err.Error() }

// Unwrap returns the error without the mark.
func (e Usage) Unwrap() error { return e.Err }

// Usagef formats an error, as [fmt.Errorf] does, and marks it as [Usage].
func Usagef(format string, args ...any) error { return Usage{fmt.Errorf(format, args...)} }

// Config is the error of a configuration that cannot be run.
type Config struct{ Err error }

func (e Config) Error() string { return e.Err.Error() }

// Unwrap returns the error without the mark.
func (e Config) Unwrap() error { return e.Err }
