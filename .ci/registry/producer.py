"""An ordinary producer: producer.py FORMAT BROKERS REGISTRY TOPIC COUNT SCHEMA.

FORMAT is avro, protobuf or json, with Confluent's serializers, or plain: Avro without framing.
"""

import io
import sys

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

KINDS = ["POST", "COURIER", "PICKUP"]


def order(i):
    return {
        "id": f"order {i}",
        "amount": 0.25 * i,
        "items": i % 7,
        "paid": i % 3 == 0,
        "at": 1_700_000_000_000 + 3_600_000 * i,
        "ship": {"weight": None if i % 5 == 0 else 0.5 + i, "kind": KINDS[i % 3]},
    }


def message_type():
    """The message of order.proto, as protoc would make it."""
    f = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    top = file.message_type.add(name="Order")
    kind = top.enum_type.add(name="Kind")
    for number, name in enumerate(KINDS):
        kind.value.add(name=name, number=number)
    ship = top.nested_type.add(name="Ship")
    ship.oneof_decl.add(name="_weight")
    ship.field.add(name="weight", number=1, type=f.TYPE_DOUBLE, label=f.LABEL_OPTIONAL, proto3_optional=True, oneof_index=0)
    ship.field.add(name="kind", number=2, type=f.TYPE_ENUM, label=f.LABEL_OPTIONAL, type_name=".shop.Order.Kind")
    fields = [("id", f.TYPE_STRING), ("amount", f.TYPE_DOUBLE), ("items", f.TYPE_INT32), ("paid", f.TYPE_BOOL), ("at", f.TYPE_INT64)]
    for number, (name, kind) in enumerate(fields, 1):
        top.field.add(name=name, number=number, type=kind, label=f.LABEL_OPTIONAL)
    top.field.add(name="ship", number=6, type=f.TYPE_MESSAGE, label=f.LABEL_OPTIONAL, type_name=".shop.Order.Ship")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def main(form, brokers, url, topic, count, path):
    with open(path, encoding="utf-8") as f:
        schema = f.read()
    registry = SchemaRegistryClient({"url": url})
    if form == "plain":
        import json

        import fastavro

        parsed = fastavro.parse_schema(json.loads(schema))

        def serialize(value, _):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, value)
            return out.getvalue()
    elif form == "avro":
        serialize = AvroSerializer(registry, schema)
    elif form == "json":
        serialize = JSONSerializer(schema, registry)
    else:
        cls = message_type()
        inner = ProtobufSerializer(cls, registry, {"use.deprecated.format": False})

        def serialize(value, context):
            kind = value["ship"].pop("kind")
            if value["ship"]["weight"] is None:
                del value["ship"]["weight"]
            m = cls(**{k: v for k, v in value.items() if k != "ship"})
            m.ship.CopyFrom(cls.Ship(kind=KINDS.index(kind), **value["ship"]))
            return inner(m, context)

    producer = Producer({"bootstrap.servers": brokers})
    context = SerializationContext(topic, MessageField.VALUE)
    for i in range(int(count)):
        producer.produce(topic, key=f"key {i}", value=serialize(order(i), context), partition=0)
        if i % 1000 == 0:
            producer.flush()
    if producer.flush(30) > 0:
        sys.exit("not all records were delivered")


if __name__ == "__main__":
    main(*sys.argv[1:])
