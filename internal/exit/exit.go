// Package exit marks errors that require a change of the command line or of the configuration. cmd/streamdp has one
// exit code for each of these two kinds. The packages that it calls mark their errors and do not know the codes.
package exit

import "fmt"

// Usage is the error of an invalid command line. Its text names the flag.
type Usage struct{ Err error }

func (e Usage) Error() string { return e.Err.Error() }

// Unwrap returns the error without the mark.
func (e Usage) Unwrap() error { return e.Err }

// Usagef formats an error like [fmt.Errorf] and marks it as [Usage].
func Usagef(format string, args ...any) error { return Usage{fmt.Errorf(format, args...)} }

// Config is the error of an invalid configuration.
type Config struct{ Err error }

func (e Config) Error() string { return e.Err.Error() }

// Unwrap returns the error without the mark.
func (e Config) Unwrap() error { return e.Err }
