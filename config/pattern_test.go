package config

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// patterned returns the configuration orders with its topic and its output replaced.
func patterned(input string, more ...string) string {
	text := strings.NewReplacer(`topic = "orders", partition`, input+", partition",
		"output = { topic = \"orders.dp\" }\n", "").Replace(orders)
	if text == orders {
		panic("nothing was replaced")
	}
	return text + strings.Join(more, "")
}

// second returns the table of a second pattern.
func second(topics, output string) string {
	return strings.NewReplacer(`topic = "orders", partition`, fmt.Sprintf("topics = %q, partition", topics),
		`"orders.dp"`, fmt.Sprintf("%q", output), "stream.orders",
		"stream.second").Replace(orders[strings.Index(orders, "[stream.orders]"):])
}

// shown lists streams as name:topic:output.
func shown(c *Config) (all []string) {
	for _, s := range c.Streams {
		all = append(all, s.Name+":"+s.Input.Topic+":"+s.Output.Topic)
	}
	return all
}

// TestPatternStream: the stream of a matching topic equals that of a table for it, except for the name: the same values
// and the same digest.
func TestPatternStream(t *testing.T) {
	c := parse(t, patterned(`topics = "sales\\.[a-z]+", max_topics = 5`))
	if len(c.Streams) != 0 || len(c.Patterns) != 1 || !c.Patterns[0].Dynamic() {
		t.Fatalf("%d streams and %d patterns", len(c.Streams), len(c.Patterns))
	}
	x, refused := c.Expand(
		Topics{Found: []string{"sales.de", "sales.de.x", "asales.de", "sales.at", "sales.", "sales.DE"}})
	if want := []string{"orders.sales.at:sales.at:sales.at.dp",
		"orders.sales.de:sales.de:sales.de.dp"}; !slices.Equal(shown(x), want) || len(refused) > 0 {
		t.Fatalf("%q, want %q; %+v", shown(x), want, refused)
	}
	if y, _ := parse(t,
		patterned(`topics = "a|b"`)).Expand(Topics{Found: []string{"a", "b", "ax", "xb", "ab"}}); len(y.Streams) != 2 {
		t.Errorf("alternatives match %q", shown(y))
	}
	written := parse(t,
		strings.NewReplacer(`topic = "orders", partition`, `topic = "sales.de", partition`,
			"output = { topic = \"orders.dp\" }\n", "").Replace(orders)).Streams[0]
	s := *x.Stream("orders.sales.de")
	if s.Pattern() != "orders" || written.Pattern() != "" {
		t.Error("the stream does not return its pattern")
	}
	if !bytes.Equal(s.Canonical(0), written.Canonical(0)) || s.Digest(0, nil) != written.Digest(0, nil) {
		t.Errorf("%v", Diff(written.Canonical(0), s.Canonical(0)))
	}
	if again, err := StreamOf(s.Name, s.Canonical(0)); err != nil || again.Input.Topic != "sales.de" {
		t.Error(again, err)
	}
	s.Name, s.of = written.Name, nil
	if !reflect.DeepEqual(&s, written) {
		t.Errorf("%+v\nwant %+v", s, written)
	}
}

// TestPatternOutputs: no topic that is written is read, for any order in which topics appear.
func TestPatternOutputs(t *testing.T) {
	text := patterned(`topics = ".*"`, second("b-.*", "x.*.sums"), `[stream.third]
input = { topic = "plain", columns = ["a"] }
output = { topic = "third-out" }
dead_letter = { mode = "reference", topic = "third-dead" }
privacy = { epsilon = 1.0, delta = 1e-8, adjacency = "zero-out" }
moments = { clip = 1.0 }
`)
	text = strings.Replace(text, "[kafka]\n", "[kafka]\ncontrol_topic = \"con\"\nboundary_topic = \"bou\"\n", 1)
	text = strings.Replace(text, "[stream.orders]\n",
		"[stream.orders]\ndead_letter = { mode = \"reference\", topic = \"*.dead\" }\n", 1)
	c := parse(t, text)
	x, refused := c.Expand(Topics{
		Found: []string{"a", "plain", "plain.dp", "a.dp", "a.dp.dp", "never.dp", "third-out", "third-dead", "con",
			"bou", "x.any.sums", "x..sums",
			"a.dead", "other.dead", "__consumer_offsets", "_schemas", "old-out", ".dp", "ok"},
		Written: []string{"old-out"},
	})
	want := []string{"orders.a:a:a.dp", "orders.ok:ok:ok.dp", "orders.x..sums:x..sums:x..sums.dp",
		"third:plain:third-out"}
	if !slices.Equal(shown(x), want) || len(refused) > 0 {
		t.Errorf("%q, want %q; %+v", shown(x), want, refused)
	}
	// This pattern has a topic of dead letters, but matches no topic yet.
	letters := strings.Replace(patterned(`topics = "a.*"`), "[stream.orders]\n",
		"[stream.orders]\ndead_letter = { mode = \"reference\", topic = \"a-dead\" }\n", 1)
	if y, _ := parse(t, letters).Expand(Topics{Found: []string{"a-dead"}}); len(y.Streams) > 0 {
		t.Errorf("dead letters are read: %q", shown(y))
	}
	// In any order, no output, dead letter or other topic of the process ever becomes an input.
	random := rand.New(rand.NewPCG(1, 2))
	parts := []string{"a", "b-", "x.", ".sums", ".dp", ".dead", "plain", "con", "third-out", "_", "B"}
	for range 40 {
		var topics []string
		for range 9 {
			name := ""
			for range 1 + random.IntN(3) {
				name += parts[random.IntN(len(parts))]
			}
			topics = append(topics, name)
		}
		now := c
		for k := range topics { // topics appear one after another
			var kept []Taken
			for _, s := range now.Streams {
				kept = append(kept, Taken{s.Name, s.Input.Topic})
			}
			now, _ = now.Expand(Topics{Kept: kept, Found: topics[:k+1]})
			reads, writes, names := map[string]int{}, map[string]bool{"con": true, "bou": true}, map[string]bool{}
			for _, s := range now.Streams {
				if reads[s.Input.Topic]++; reads[s.Input.Topic] > 1 || names[strings.ToLower(s.Name)] ||
					writes[s.Output.Topic] {
					t.Fatalf("%q: %q", topics[:k+1], shown(now))
				}
				names[strings.ToLower(s.Name)], writes[s.Output.Topic], writes[s.DeadLetter.Topic] = true, true, true
			}
			for topic := range writes {
				if reads[topic] > 0 {
					t.Fatalf("%q is read and written: %q", topic, shown(now))
				}
			}
		}
	}
}

// TestPatternsTwice: a topic that two patterns match belongs to the first one, and stays with the pattern that has it.
// If both patterns have the same text, both have it.
func TestPatternsTwice(t *testing.T) {
	c := parse(t, patterned(`topics = "a.*"`, second("a.|b", "*.second")))
	x, refused := c.Expand(Topics{Found: []string{"ab", "b"}})
	if want := []string{"orders.ab:ab:ab.dp", "second.b:b:b.second"}; !slices.Equal(shown(x), want) {
		t.Errorf("%q", shown(x))
	}
	if len(refused) != 1 || refused[0].Pattern != "second" || refused[0].Topic != "ab" ||
		!strings.Contains(refused[0].Reason, "[stream.orders]") || refused[0].Beyond {
		t.Errorf("%+v", refused)
	}
	x, refused = c.Expand(Topics{Kept: []Taken{{"second.ab", "ab"}}, Found: []string{"ab"}})
	if want := []string{"second.ab:ab:ab.second"}; !slices.Equal(shown(x), want) || len(refused) != 1 ||
		refused[0].Pattern != "orders" {
		t.Errorf("%q %+v", shown(x), refused)
	}
	c = parse(t, patterned(`topics = "a.*"`, second("a.*", "*.second")))
	x, refused = c.Expand(Topics{Found: []string{"ab"}})
	if want := []string{"orders.ab:ab:ab.dp", "second.ab:ab:ab.second"}; !slices.Equal(shown(x), want) ||
		len(refused) > 0 {
		t.Errorf("%q %+v", shown(x), refused)
	}
	// Both streams pay from one budget, so their limits must agree.
	both := patterned(`topics = "a.*"`, second("a.*", "*.second"))
	i := strings.LastIndex(both, "limit_epsilon = 3.0")
	if _, err := Parse("f",
		[]byte(both[:i]+strings.Replace(both[i:], "limit_epsilon = 3.0", "limit_epsilon = 4.0", 1))); err == nil ||
		!strings.Contains(err.Error(), "must be the same as in [stream.orders], which reads the same topic") {
		t.Error(err)
	}
}

// TestPatternBound: topics in use stay in use, the oldest first, and at most max_topics are used.
func TestPatternBound(t *testing.T) {
	c := parse(t, patterned(`topics = "t.", max_topics = 2`))
	x, refused := c.Expand(Topics{Found: []string{"t3", "t1", "t2", "t2"}})
	if want := []string{"orders.t1:t1:t1.dp", "orders.t2:t2:t2.dp"}; !slices.Equal(shown(x), want) {
		t.Errorf("%q", shown(x))
	}
	if len(refused) != 1 || refused[0].Topic != "t3" || !refused[0].Beyond {
		t.Errorf("%+v", refused)
	}
	kept := []Taken{{"orders.t9", "t9"}, {"orders.u1", "u1"}, {"orders.t2", "t1"}, {"orders.t3", "t3"},
		{"orders.t4", "t4"}}
	y, refused := x.Expand(Topics{Kept: kept, Found: []string{"t1", "t3"}})
	if want := []string{"orders.t3:t3:t3.dp", "orders.t9:t9:t9.dp"}; !slices.Equal(shown(y), want) {
		t.Errorf("%q", shown(y))
	}
	if len(refused) != 2 || refused[0].Topic != "t4" || refused[1].Topic != "t1" {
		t.Errorf("%+v", refused)
	}
	// A stream that is kept is the same *Stream.
	z, _ := y.Expand(Topics{Kept: []Taken{{"orders.t9", "t9"}}, Found: []string{"t5"}})
	if z.Stream("orders.t9") != y.Stream("orders.t9") || z.Stream("orders.t3") != nil || z.Stream("orders.t5") == nil {
		t.Errorf("%q", shown(z))
	}
}

// TestPatternConflicts: a topic is refused if its output is another stream's input or output.
func TestPatternConflicts(t *testing.T) {
	c := parse(t, patterned(`topics = "[a-z]+"`, `[stream.third]
input = { topic = "one.dp", columns = ["a"] }
output = { topic = "two.dp" }
privacy = { epsilon = 1.0, delta = 1e-8, adjacency = "zero-out" }
moments = { clip = 1.0 }
`))
	long := strings.Repeat("x", 247)
	x, refused := c.Expand(Topics{Found: []string{"one", "two", long, "three"}})
	if want := []string{"orders.three:three:three.dp", "third:one.dp:two.dp"}; !slices.Equal(shown(x), want) {
		t.Errorf("%q", shown(x))
	}
	var why []string
	for _, r := range refused {
		why = append(why, r.Reason)
	}
	if want := []string{"its output topic one.dp is read by stream third",
		"its output topic two.dp is written by stream third",
		"its output topic would have too long a name"}; !slices.Equal(why, want) {
		t.Errorf("%q", why)
	}
}

// TestPatternPersons: a population is named after the topic, unless the pattern names one.
func TestPatternPersons(t *testing.T) {
	user := "[stream.orders.user]\nkey = \"record-key\"\ncap = 2\nmax_users = 1000\n"
	replace := func(text string) string { return strings.Replace(text, `"zero-out"`, `"replace"`, 1) }
	x, _ := parse(t, replace(patterned(`topics = "t."`, user))).Expand(Topics{Found: []string{"t1", "t2"}})
	if len(x.Streams) != 2 || x.Streams[0].User.Population != "t1" || x.Streams[1].User.Population != "t2" {
		t.Errorf("%+v", shown(x))
	}
	x, _ = parse(t,
		replace(patterned(`topics = "t."`, user+"population = \"all\"\n"))).Expand(Topics{Found: []string{"t1", "t2"}})
	if len(x.Streams) != 2 || x.Streams[0].User.Population != "all" || x.Streams[1].User.Population != "all" {
		t.Errorf("%+v", shown(x))
	}
	// A topic is refused if another stream states a different limit for its population.
	third := `[stream.third]
input = { topic = "p", columns = ["a"] }
step = 10
privacy = { epsilon = 2.0, delta = 1e-8, adjacency = "replace" }
user = { key = "record-key", population = "t1", cap = 2, max_users = 1000 }
moments = { clip = 1.0 }
`
	x, refused := parse(t, replace(patterned(`topics = "t."`, user, third))).Expand(Topics{Found: []string{"t1", "t2"}})
	if len(x.Streams) != 2 || x.Stream("orders.t1") != nil || len(refused) != 1 ||
		!strings.Contains(refused[0].Reason, "it has the same population as stream third") {
		t.Errorf("%q %+v", shown(x), refused)
	}
}

// TestStreamNames: different patterns or topics give different names, even if capitals are ignored. Names are short
// enough for a directory and contain no characters that are special to a file system.
func TestStreamNames(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	topics := []string{"a", "A", "a.b", "a-0", "a-merged", "b", "a~", strings.Repeat("a", 249),
		strings.Repeat("a", 248) + "b", strings.Repeat("A", 249), strings.Repeat("a", 249-1) + "B"}
	for n := range 250 {
		topics = append(topics, strings.Repeat("z", n))
	}
	const letters = "abAB.-_09"
	for range 600 {
		name := make([]byte, 1+random.IntN(249))
		for i := range name {
			name[i] = letters[random.IntN(len(letters))]
		}
		topics = append(topics, string(name))
	}
	// This topic looks like a shortened name.
	topics = append(topics, (&Stream{Name: "p"}).StreamName("Orders")[2:])
	seen := map[string]string{}
	for _, pattern := range []string{"p", "pa", "-", strings.Repeat("p", 63)} {
		s := &Stream{Name: pattern}
		for _, topic := range topics {
			if !isTopic(topic) {
				continue
			}
			name := s.StreamName(topic)
			if other, ok := seen[name]; ok && other != pattern+" "+topic {
				t.Fatalf("%q and %q are both %q", other, pattern+" "+topic, name)
			}
			seen[name] = pattern + " " + topic
			if len(name) > maxStreamName || strings.ToLower(name) != name ||
				strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789._-~") != "" ||
				!strings.HasPrefix(name, pattern+".") {
				t.Fatalf("%q of %q", name, topic)
			}
			if strings.ToLower(topic) == topic && len(pattern)+1+len(topic) <= maxStreamName &&
				name != pattern+"."+topic {
				t.Fatalf("%q of %q, which needs no hash", name, topic)
			}
		}
	}
	// The name is in ledgers and in the names of files, so it must never change.
	if got := (&Stream{Name: "p"}).StreamName("Orders"); got != "p.orders~w7ukzxksfzqzblevm6wrnx7zq4" {
		t.Errorf("the name is %q", got)
	}
}

// TestNamed: a command can name a stream of a pattern without asking the cluster for topics.
func TestNamed(t *testing.T) {
	c := parse(t, patterned(`topics = "t.+", max_topics = 1`))
	c, _ = c.Expand(Topics{Kept: []Taken{{"orders.t1", "t1"}}})
	if s := c.Named("orders.t1"); s == nil || s != c.Stream("orders.t1") {
		t.Error(s)
	}
	if s := c.Named("orders.t.2"); s == nil || s.Input.Topic != "t.2" || c.Stream("orders.t.2") != nil {
		t.Error(s)
	}
	for _, name := range []string{"orders", "orders.", "orders.u", "order.t2", "orders.t.dp", "orders.tA"} {
		if s := c.Named(name); s != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestPatternFaults checks the faults of settings that cannot be used with a pattern.
func TestPatternFaults(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{patterned(`topic = "a", topics = "b"`), `input.topics: must be absent with input.topic ("b")`},
		{patterned(`topic = "a", max_topics = 5`), `input.max_topics: is only for input.topics (5)`},
		{patterned(`topics = "b", max_topics = 0`), `input.max_topics: must be 1 to 10000 (0)`},
		{patterned(`topics = "a)|(b"`),
			`input.topics: must be a regular expression (RE2): unexpected ): ` + "`a)|(b`" + ` ("a)|(b")`},
		{patterned(`topics = "("`),
			`input.topics: must be a regular expression (RE2): missing closing ): ` + "`(`" + ` ("(")`},
		{patterned(`topics = ""`), `input.topic: required`},
		{strings.Replace(patterned(`topics = "a"`), `"earliest"`, "7", 1),
			`input.start: must be "earliest" or "latest" with input.topics: each topic has its own offsets`},
		{strings.Replace(orders, `topic = "orders", partition`, `topics = "a", partition`, 1),
			`output.topic: must contain "*" with input.topics: each topic needs its own output, and "*" stands for the topic's name ("orders.dp")`},
		{strings.Replace(strings.Replace(orders, `topic = "orders", partition`, `topics = "a", partition`, 1),
			`"orders.dp"`, `"*"`, 1),
			`output.topic: must not be "*" alone: it stands for the input topic, so input and output would be the same ("*")`},
		{strings.Replace(orders, `"orders.dp"`, `"*.dp"`, 1),
			`output.topic: must be a Kafka topic: 1 to 249 of letters, digits, ".", "_" and "-" ("*.dp")`},
		{strings.Replace(orders, `"orders.dp"`, `"*.*"`, 1),
			`output.topic: must be a Kafka topic: 1 to 249 of letters, digits, ".", "_" and "-" ("*.*")`},
		{strings.Replace(orders, "[stream.orders]\n",
			"[stream.orders]\ndead_letter = { mode = \"reference\", topic = \"*.d\" }\n", 1),
			`dead_letter.topic: must be a Kafka topic: 1 to 249 of letters, digits, ".", "_" and "-" ("*.d")`},
		{strings.Replace(patterned(`topics = "a"`), "[stream.orders]\n",
			"[stream.orders]\ndead_letter = { mode = \"reference\", topic = \"*.dp\" }\n", 1),
			`dead_letter.topic: must not be output.topic ("*.dp")`},
		{patterned(`topics = "a"`, second("a", "*.dp")),
			`stream.second.output.topic: must differ from stream.orders.output.topic: they would name the same topic ("*.dp")`},
		{patterned(`topics = "a"`, "[cluster]\ngroup = \"g\"\n"),
			`input.topics: must be absent with [cluster]: no single instance knows how many topics are in use ("a")`},
	} {
		if _, err := Parse("f", []byte(x.text)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v\nwant %s", err, x.want)
		}
	}
}
