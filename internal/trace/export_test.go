package trace

import "time"

// Times gives a tracer of a test other bounds of time, each where it is not zero: of the wait for
// spans of a request, of a request, and of the end.
func (o *Options) Times(batch, send, end time.Duration) { o.times = times{batch, send, end} }
