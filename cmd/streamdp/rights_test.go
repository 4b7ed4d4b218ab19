package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
)

// TestRealKafkaCheckRights: `check --connect` names each permission that the brokers do not grant, with the command
// that grants it. After these commands it finds nothing, and the test has changed nothing else.
func TestRealKafkaCheckRights(t *testing.T) {
	b := kafkatest.NewReal(t)
	if b.SASL == "" {
		t.Skip("this broker has no listener with SASL: make test-kafka starts one that has")
	}
	in := kafkatest.Topic(t, b.Addrs, nil)
	group := fmt.Sprint("rights-", time.Now().UnixNano())
	dir := t.TempDir()
	file, password := filepath.Join(dir, "streamdp.toml"), filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(siteConfig, b.SASL, filepath.Join(dir, "state"), filepath.Join(dir, "key"), "", "1.0")
	text = strings.NewReplacer(`topic = "orders"`, fmt.Sprintf("topic = %q", in), `topic = "orders.dp"`,
		fmt.Sprintf("topic = %q", in+".dp"),
		"[state]",
		fmt.Sprintf(
			"group = %q\nsasl = { mechanism = \"plain\", username = \"streamdp\", password_file = %q }\n[state]", group,
			password)).Replace(text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, exitDone, "", "keygen", filepath.Join(dir, "key"))

	code, out, errs := call(t, "check", "--connect", "-c", file)
	if code != exitConfig || out != "" {
		t.Fatalf("code %d: %s", code, out)
	}
	var commands []string
	for _, r := range []string{"Read, DescribeConfigs topic " + in, "Read, Write, Create topic " + in + ".dp", "Read " +
		"group " + group} {
		_, rest, found := strings.Cut(errs, "this user may not "+r+": kafka-acls.sh ")
		if !found {
			t.Fatalf("%s is not named:\n%s", r, errs)
		}
		command, _, _ := strings.Cut(rest, "\n")
		commands = append(commands, command)
	}
	if n := strings.Count(errs, "this user may not"); n != 3 {
		t.Errorf("%d resources:\n%s", n, errs)
	}
	// The first command is run with Kafka's own tool, at the listener that allows everything. The others would take
	// seconds each, so the test makes the same requests itself.
	for i, command := range commands {
		words := strings.Fields(command)
		if jars := os.Getenv("JARS"); i == 1 && jars != "" {
			args := append([]string{"-cp", jars + "/*", "org.apache.kafka.tools.AclCommand"}, words...)
			for j := range args {
				if args[j] == b.SASL {
					args[j] = b.Addrs[0]
				}
			}
			if out, err := exec.Command("java", args...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			continue
		}
		typ, name := kmsg.ACLResourceTypeTopic, words[len(words)-1]
		if words[len(words)-2] == "--group" {
			typ = kmsg.ACLResourceTypeGroup
		}
		ops := map[string]kmsg.ACLOperation{"Read": kmsg.ACLOperationRead, "Write": kmsg.ACLOperationWrite,
			"Create": kmsg.ACLOperationCreate, "DescribeConfigs": kmsg.ACLOperationDescribeConfigs}
		for j, w := range words {
			if w == "--operation" {
				b.Grant(typ, name, ops[words[j+1]])
			}
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		code, out, errs = call(t, "check", "--connect", "-c", file)
		if code == exitDone || time.Now().After(deadline) {
			break
		}
	}
	for _, r := range []string{"may Read, DescribeConfigs topic " + in + "\n", "may Read, Write, Create topic " +
		"" + in + ".dp\n", "may Read group " + group + "\n"} {
		if code != exitDone || !strings.Contains(out, r) {
			t.Fatalf("no %q, code %d:\n%s%s", r, code, out, errs)
		}
	}
	c, err := kafka.NewClient(kafka.Options{Brokers: b.Addrs})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if made, err := c.Topic(t.Context(), in+".dp"); err != nil || made.Exists {
		t.Errorf("the check created a topic: %+v, %v", made, err)
	}
}
