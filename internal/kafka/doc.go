// Package kafka is the daemon's side of Kafka: a reader of one partition that
// proves at every response that the log is still the one it has read before, a
// producer that returns when everything is acknowledged, and the few
// administrative calls the daemon needs. No other package imports kafka-go.
//
// kafka-go's own Reader and Writer are not used. Its Reader skips lost data
// without an error, delivers aborted records and transaction markers, and
// carries on at the same offset of a re-created topic; its Writer repeats
// messages by itself and goes on writing after its context has ended. What is
// used is one request and one response: Transport.RoundTrip and the calls of
// kafka-go's Client.
//
// No call retries for ever and none has hidden goroutines that outlive it. A
// caller looks at the error: Retriable says whether to wait (see Backoff) and
// repeat the call, and the terminal conditions of a log, GapError,
// TruncatedError and ReplacedError, say why a stream cannot go on.
//
// Errors name topics, partitions, offsets, codes and addresses, and never
// anything derived from a record.
package kafka
