package task

// This file shows the tests in package task_test what they look into.

type (
	LetterReference = letterReference
	Processor       = processor
)

const (
	DeadLetterSchema = deadLetterSchema
)
