// Package chaos judges instances of the daemon on three brokers of Apache Kafka by what came
// out: the output topics and the ledgers alone. All of it is tests; .ci/kafka/three runs them.
package chaos
