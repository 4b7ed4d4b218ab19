// Package kafka is the daemon's client of Kafka. It has a reader of one partition, which checks with each response that
// the log is still the one that it read before; a producer, which returns when everything is acknowledged; and the few
// administrative calls that the daemon needs. No other package imports kafka-go.
//
// This package does not use kafka-go's own Reader and Writer. The Reader of kafka-go skips lost data without an error,
// delivers aborted records and transaction markers, and continues at the same offset of a re-created topic. Its Writer
// repeats messages by itself, and keeps writing after its context has ended. This package uses kafka-go for single
// requests and responses: Transport.RoundTrip and the calls of its Client. Package batch decodes record batches,
// because kafka-go's decoder takes several times as long, holds a whole decompressed batch in memory, and allocates as
// much as a length field in a batch claims.
//
// The readers of a client share fetch requests: see sharedFetches.
//
// No call retries indefinitely. One goroutine may outlive its call: when Fetch returns, a Reader's next request may
// still be running, until the context of that Fetch ends. An error says what the caller should do. If Retriable reports
// true, wait (see Backoff) and repeat the call. GapError, TruncatedError and ReplacedError are final: they say why a
// stream cannot continue on this log.
//
// Errors name topics, partitions, offsets, codes and addresses. They contain nothing that is computed from a record.
package kafka
