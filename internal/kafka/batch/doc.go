// Package batch reads the records of Kafka's record batches (format 2, since Kafka 0.11): bytes
// in, records out, in bounded memory, without a network.
//
// Cut splits a record set into batches. Check and Header.Parse read a batch's header, and a
// Reader its records. No length in a batch is believed before its bytes are there. A compressed
// batch is read as a stream: a Reader holds what the codec needs, and the Arena of the caller
// what the records need, each of which has a limit. Codecs are the caller's.
//
// Messages of the formats before are recognized (Old), and not read. Errors say nothing of
// what is decoded.
package batch
