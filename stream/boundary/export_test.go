package boundary

// This file exports internals to the tests in package boundary_test.

type (
	BoundaryValue = boundaryValue
)

const (
	BoundaryHeader = boundaryHeader
	MaxQueued      = maxQueued
)

func (x *Boundaries) Mac(a0 []byte) []byte { return x.log.Sign(nil, a0) }

func (x *Boundaries) Name() *[]byte { return &x.name }

func (x *Boundaries) Queue() *[]Boundary { return &x.queue }

func (x *Boundaries) Take(a0 Boundary) error { return x.take(a0) }
