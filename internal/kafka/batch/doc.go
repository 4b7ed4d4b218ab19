// Package batch reads the records of Kafka's record batches (format 2, since Kafka 0.11): bytes
// in, records out, in bounded memory, without a network.
//
// Cut splits a record set into batches. Check compares a batch with its checksum, Header.Parse
// reads its header, and a Reader its records, one after the other. The caller supplies the
// codecs.
//
// Lengths that a batch states are not believed: memory is allocated only for bytes that are
// there, or up to the limit of a record. A compressed batch is read as a stream, of which a
// Reader holds 64 kB and what the codec needs. A record beyond the limit is hashed while it
// passes by, and delivered without its content.
//
// Messages of the older formats are recognized (Old), and not read. Errors say nothing of
// what is decoded.
package batch
