package httpapi

// This file shows the tests in package httpapi_test what they look into.

const (
	HeaderTimeout  = headerTimeout
	MaxConnections = maxConnections
)

var (
	Success = success
)
