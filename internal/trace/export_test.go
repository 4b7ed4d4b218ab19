package trace

import "time"

// Times changes the times of a tracer for a test: batch is the wait for more spans of a request, send the limit of a
// request, end the limit of sending at the end. 0 leaves a time unchanged.
func (o *Options) Times(batch, send, end time.Duration) { o.times = times{batch, send, end} }
