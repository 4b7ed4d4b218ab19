package connect_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/stream/connect"
)

// TestNeededRights: Rights returns the table in docs/operations.md, each resource once.
func TestNeededRights(t *testing.T) {
	const head = "[kafka]\nbrokers = [\"localhost:9092\"]\n%s[state]\ndir = \"s\"\nkey_file = \"k\"\n"
	for name, test := range map[string]struct{ kafka, more, want string }{
		"a stream": {"", "", "Read, DescribeConfigs topic orders; Read, Write, Create topic orders.dp"},
		"all that one process has": {"boundary_topic = \"b\"\ncontrol_topic = \"c\"\ngroup = \"lag\"\n",
			`[stream.orders.dead_letter]
mode = "reference"
topic = "dead"
`, "Read, DescribeConfigs topic orders; Read, Write, Create topic orders.dp; Write topic dead; " +
				"Read, Write, DescribeConfigs, Create topic b; Read, Write, DescribeConfigs, Create topic c; " +
				"Read group lag"},
		"instances": {"", "[cluster]\ngroup = \"g\"\n",
			"Read, DescribeConfigs topic orders; Read, Write, Create topic orders.dp; " +
				"Read, Write, Describe, DescribeConfigs topic g.state; Read, Write, Describe, DescribeConfigs " +
				"topic g.ledger; " +
				"Read, Write, Describe, DescribeConfigs topic g.control; Read, Write, Describe, DescribeConfigs " +
				"topic g.partials; " +
				"Read, Describe group g; Write, Describe transactional id g-…"},
	} {
		c, err := config.Parse("test.toml", []byte(fmt.Sprintf(head, test.kafka)+fixtures.OrdersStream+test.more))
		fixtures.Must(t, err)
		var got []string
		for _, r := range connect.Rights(c) {
			got = append(got, r.String())
		}
		if list := strings.Join(got, "; "); list != test.want {
			t.Errorf("%s: %s", name, list)
		}
	}
	c, err := config.Parse("test.toml",
		[]byte(fmt.Sprintf(head, "")+
			strings.Replace(fixtures.OrdersStream, `topic = "orders.dp"`, `topic = "orders.dp", create = false`, 1)))
	fixtures.Must(t, err)
	if r := connect.Rights(c)[1].String(); r != "Read, Write topic orders.dp" {
		t.Error(r)
	}
}
