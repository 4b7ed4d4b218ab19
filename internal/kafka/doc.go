// Package kafka is the daemon's side of Kafka. It has a reader of one partition, which
// checks at every response that the log is still the one it has read before; a producer,
// which returns when everything is acknowledged; and the few administrative calls that the
// daemon needs. No other package imports kafka-go.
//
// kafka-go's own Reader and Writer are not used. The Reader skips lost data without an
// error, delivers aborted records and transaction markers, and continues at the same offset
// of a re-created topic. The Writer repeats messages by itself, and goes on writing after
// its context has ended. This package uses kafka-go for single requests and responses:
// Transport.RoundTrip and the calls of its Client. Package batch decodes record batches.
// kafka-go's decoder takes several times as long, holds a whole decompressed batch in
// memory, and allocates as much as a length in a batch says.
//
// The readers of a client share fetch requests: see sharedFetches.
//
// No call retries for ever. One goroutine may outlive its call: a Reader's next request may
// be under way when Fetch returns, until the context of that Fetch ends. The error says what
// to do. If Retriable reports true, wait (see Backoff) and repeat the call. The terminal
// conditions of a log, GapError, TruncatedError and ReplacedError, say why a stream cannot
// go on.
//
// Errors name topics, partitions, offsets, codes and addresses. They contain nothing that is
// computed from a record.
package kafka
