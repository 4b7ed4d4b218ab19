"""Reading releases from Kafka and from files."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ._release import Release, assemble


def read(brokers: str, topic: str, *, timeout: float = 30.0, **settings: Any) -> list[Release]:
    """Reads all releases of a topic, up to its end at the time of the call.

    It uses confluent-kafka or, if that is not installed, kafka-python. settings are passed to the
    client, for example {"security.protocol": "SSL"} to confluent-kafka. If you use another client, pass
    its messages to assemble.
    """
    try:
        import confluent_kafka
    except ImportError:
        pass
    else:
        return assemble(_confluent(confluent_kafka, brokers, topic, timeout, settings))
    try:
        import kafka
    except ImportError:
        raise ImportError("read needs a Kafka client: pip install confluent-kafka, or kafka-python; or pass your own messages to streamdp.assemble") from None
    return assemble(_kafka_python(kafka, brokers, topic, timeout, settings))


def _confluent(client: Any, brokers: str, topic: str, timeout: float, settings: dict[str, Any]) -> Iterator[Any]:
    consumer = client.Consumer({
        "bootstrap.servers": brokers, "group.id": "streamdp-reader", "enable.auto.commit": False, "auto.offset.reset": "earliest",
        "enable.partition.eof": True, "isolation.level": "read_committed", **settings,
    })
    try:
        found = consumer.list_topics(topic, timeout).topics[topic]
        if found.error is not None or not found.partitions:
            raise LookupError(f"{brokers} has no topic {topic}")
        ends = {}
        for p in found.partitions:
            low, high = consumer.get_watermark_offsets(client.TopicPartition(topic, p), timeout)
            if low < high:
                ends[p] = high
        consumer.assign([client.TopicPartition(topic, p, client.OFFSET_BEGINNING) for p in ends])
        open_parts = set(ends)
        while open_parts:
            message = consumer.poll(timeout)
            if message is None:
                raise TimeoutError(f"no answer from {brokers} for {timeout} s")
            if message.error() is None:
                if message.partition() in open_parts and message.offset() < ends[message.partition()]:
                    yield message
                if message.offset() >= ends[message.partition()] - 1:
                    open_parts.discard(message.partition())
            elif message.error().code() == client.KafkaError._PARTITION_EOF:
                open_parts.discard(message.partition())
            else:
                raise client.KafkaException(message.error())
    finally:
        consumer.close()


def _kafka_python(client: Any, brokers: str, topic: str, timeout: float, settings: dict[str, Any]) -> Iterator[Any]:
    consumer = client.KafkaConsumer(bootstrap_servers=brokers, group_id=None, enable_auto_commit=False, auto_offset_reset="earliest",
                                    consumer_timeout_ms=int(1000 * timeout), **settings)
    try:
        found = consumer.partitions_for_topic(topic)
        if not found:
            raise LookupError(f"{brokers} has no topic {topic}")
        parts = [client.TopicPartition(topic, p) for p in found]
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        consumer.seek_to_beginning(*parts)
        while any(consumer.position(p) < ends[p] for p in parts):
            batch = consumer.poll(timeout_ms=int(1000 * timeout))
            if not batch:
                raise TimeoutError(f"no answer from {brokers} for {timeout} s")
            for messages in batch.values():
                yield from messages
    finally:
        consumer.close()


def read_file(path: str | os.PathLike[str]) -> list[Release]:
    """Reads releases from a file, possibly .gz. The file holds one JSON object per line, as `streamdp replay` and
    console consumers print them; or a JSON list; or a response of the daemon's /api/v1/streams/NAME/releases."""
    raw = Path(path).read_bytes()
    text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return assemble(line for line in text.splitlines() if line.strip())
    if isinstance(whole, dict) and "data" in whole and "schema" not in whole:
        whole = whole["data"]
    return assemble(json.dumps(x) for x in (whole if isinstance(whole, list) else [whole]))
