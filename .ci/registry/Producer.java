import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.DescriptorProtos.DescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Label;
import com.google.protobuf.DescriptorProtos.FieldDescriptorProto.Type;
import com.google.protobuf.DescriptorProtos.FileDescriptorProto;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * An ordinary producer: Producer FORMAT BROKERS REGISTRY OWN TOPIC COUNT SCHEMA. REGISTRY is the
 * registry's address for Confluent's API, OWN that for Apicurio's. FORMAT is avro, with Apicurio's
 * serializer in Confluent's framing; or protobuf or json, framed here, for Confluent's own
 * serializers are not in Maven Central.
 */
public class Producer {
  public static void main(String[] args) throws Exception {
    String format = args[0], topic = args[4], text = Files.readString(Path.of(args[6]));
    int count = Integer.parseInt(args[5]);
    Properties p = new Properties();
    p.put("bootstrap.servers", args[1]);
    p.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
    p.put("apicurio.registry.url", args[3]);
    p.put("apicurio.registry.auto-register", true);
    p.put("apicurio.registry.as-confluent", true);
    p.put("apicurio.registry.use-id", "contentId");
    p.put("apicurio.registry.headers.enabled", false);
    p.put("apicurio.registry.artifact-resolver-strategy", "io.apicurio.registry.serde.strategy.TopicIdStrategy");
    p.put("value.serializer", switch (format) {
      case "avro" -> "io.apicurio.registry.serde.avro.AvroKafkaSerializer";
      default -> "org.apache.kafka.common.serialization.ByteArraySerializer";
    });
    Schema avro = format.equals("avro") ? new Schema.Parser().parse(text) : null;
    int id = avro != null ? 0 : register(args[2], topic + "-value", format, text);
    ObjectMapper json = new ObjectMapper();
    Descriptor order = order();
    try (KafkaProducer<String, Object> producer = new KafkaProducer<>(p)) {
      for (int i = 0; i < count; i++) {
        Object value = switch (format) {
          case "avro" -> {
            GenericData.Record r = new GenericData.Record(avro);
            r.put("id", "order " + i);
            r.put("amount", amount(i));
            r.put("items", i % 7);
            r.put("paid", i % 3 == 0);
            r.put("at", at(i));
            GenericData.Record ship = new GenericData.Record(avro.getField("ship").schema());
            ship.put("weight", i % 5 == 0 ? null : weight(i));
            ship.put("kind", new GenericData.EnumSymbol(ship.getSchema().getField("kind").schema(), kind(i)));
            r.put("ship", ship);
            yield r;
          }
          case "json" -> {
            Map<String, Object> ship = new HashMap<>();
            ship.put("weight", i % 5 == 0 ? null : weight(i));
            ship.put("kind", kind(i));
            Map<String, Object> r = new HashMap<>(Map.of("id", "order " + i, "amount", amount(i), "items", i % 7, "paid", i % 3 == 0, "at", at(i)));
            r.put("ship", ship);
            byte[] document = json.writeValueAsBytes(r);
            yield ByteBuffer.allocate(5 + document.length).put((byte) 0).putInt(id).put(document).array();
          }
          default -> {
            Descriptor shipType = order.findNestedTypeByName("Ship");
            DynamicMessage.Builder ship = DynamicMessage.newBuilder(shipType)
                .setField(shipType.findFieldByName("kind"), order.findEnumTypeByName("Kind").findValueByName(kind(i)));
            if (i % 5 != 0) {
              ship.setField(shipType.findFieldByName("weight"), weight(i));
            }
            byte[] message = DynamicMessage.newBuilder(order)
                .setField(order.findFieldByName("id"), "order " + i)
                .setField(order.findFieldByName("amount"), amount(i))
                .setField(order.findFieldByName("items"), i % 7)
                .setField(order.findFieldByName("paid"), i % 3 == 0)
                .setField(order.findFieldByName("at"), at(i))
                .setField(order.findFieldByName("ship"), ship.build())
                .build().toByteArray();
            // 0, the id, and which message: a list of one index, 0, is written as a single 0.
            yield ByteBuffer.allocate(6 + message.length).put((byte) 0).putInt(id).put((byte) 0).put(message).array();
          }
        };
        producer.send(new ProducerRecord<>(topic, 0, "key " + i, value)).get();
      }
    }
  }

  static double amount(int i) { return 0.25 * i; }

  static double weight(int i) { return 0.5 + i; }

  static long at(int i) { return 1_700_000_000_000L + 3_600_000L * i; }

  static String kind(int i) { return new String[] {"POST", "COURIER", "PICKUP"}[i % 3]; }

  static int register(String url, String subject, String format, String text) throws Exception {
    String body = "{\"schemaType\":\"" + format.toUpperCase() + "\",\"schema\":\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"}";
    HttpRequest request = HttpRequest.newBuilder(URI.create(url + "/subjects/" + subject + "/versions"))
        .header("Content-Type", "application/vnd.schemaregistry.v1+json").POST(HttpRequest.BodyPublishers.ofString(body)).build();
    String answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body();
    return Integer.parseInt(answer.replaceAll(".*\"id\":(\\d+).*", "$1"));
  }

  /** The message of order.proto, as protoc would make it. */
  static Descriptor order() throws Exception {
    DescriptorProto ship = DescriptorProto.newBuilder().setName("Ship")
        .addField(field("weight", 1, Type.TYPE_DOUBLE, "").setProto3Optional(true).setOneofIndex(0))
        .addField(field("kind", 2, Type.TYPE_ENUM, ".shop.Order.Kind"))
        .addOneofDecl(com.google.protobuf.DescriptorProtos.OneofDescriptorProto.newBuilder().setName("_weight")).build();
    var kind = com.google.protobuf.DescriptorProtos.EnumDescriptorProto.newBuilder().setName("Kind");
    String[] names = {"POST", "COURIER", "PICKUP"};
    for (int i = 0; i < names.length; i++) {
      kind.addValue(com.google.protobuf.DescriptorProtos.EnumValueDescriptorProto.newBuilder().setName(names[i]).setNumber(i));
    }
    DescriptorProto order = DescriptorProto.newBuilder().setName("Order")
        .addField(field("id", 1, Type.TYPE_STRING, ""))
        .addField(field("amount", 2, Type.TYPE_DOUBLE, ""))
        .addField(field("items", 3, Type.TYPE_INT32, ""))
        .addField(field("paid", 4, Type.TYPE_BOOL, ""))
        .addField(field("at", 5, Type.TYPE_INT64, ""))
        .addField(field("ship", 6, Type.TYPE_MESSAGE, ".shop.Order.Ship"))
        .addEnumType(kind).addNestedType(ship).build();
    FileDescriptorProto file = FileDescriptorProto.newBuilder().setName("order.proto").setPackage("shop").setSyntax("proto3").addMessageType(order).build();
    return FileDescriptor.buildFrom(file, new FileDescriptor[0]).findMessageTypeByName("Order");
  }

  static FieldDescriptorProto.Builder field(String name, int number, Type type, String typeName) {
    FieldDescriptorProto.Builder b = FieldDescriptorProto.newBuilder().setName(name).setNumber(number).setType(type).setLabel(Label.LABEL_OPTIONAL);
    return typeName.isEmpty() ? b : b.setTypeName(typeName);
  }
}
