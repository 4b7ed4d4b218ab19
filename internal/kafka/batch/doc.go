// Package batch reads the records of Kafka's record batches (format 2, since Kafka 0.11) from bytes, in bounded memory
// and without a network.
//
// Cut splits a record set into batches. Check compares a batch with its checksum, Header.Parse reads its header, and a
// Reader reads its records one after the other. The caller supplies the codecs.
//
// Lengths in a batch are not trusted: memory is allocated only for bytes that are present, or up to the size limit of a
// record. A compressed batch is read as a stream: a Reader holds 64 kB of it, and the memory of the codec. A record
// beyond the limit is hashed while it is read, and delivered without its content.
//
// Messages in older formats are recognized (Old), but not read. Errors contain nothing of the decoded data.
package batch
