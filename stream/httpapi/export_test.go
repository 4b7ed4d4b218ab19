package httpapi

// This file exports internals to the tests in package httpapi_test.

const (
	HeaderTimeout  = headerTimeout
	MaxConnections = maxConnections
)

var (
	Success = success
)
