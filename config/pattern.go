package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/streamdp/streamdp/internal/toml"
)

// A stream with input.topics is a pattern. Each topic that matches becomes a stream of its own, as if the file had a
// table for it. [Config.Patterns] holds the patterns, and [Config.Expand] makes the streams.

const (
	// maxStreamName is the longest name of a stream made from a topic. The name, "-" and a partition together name a
	// directory, whose name may have at most 255 bytes.
	maxStreamName = 200
	// maxTopic is the length of the longest name of a topic.
	maxTopic = 249
	// maxTopicsDefault is the default of input.max_topics.
	maxTopicsDefault = 100
	// systems is the prefix of topics that, by convention, no application writes.
	systems = "_"
	// released is the default suffix of output topics.
	released = ".dp"
	// anyTopic stands for the input's topic in the names that a pattern writes to.
	anyTopic = "*"
)

// Dynamic reports whether the stream is a pattern.
func (s *Stream) Dynamic() bool { return s.Input.Topics != "" }

// Pattern returns the name of the pattern that made the stream, "" for a stream that is a table of the configuration.
func (s *Stream) Pattern() string {
	if s.of == nil {
		return ""
	}
	return s.of.Name
}

// compilePattern compiles a pattern. The result matches only whole names of topics.
func compilePattern(text string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(text); err != nil { // first alone, because a stray bracket in it could close ours
		return nil, err
	}
	return regexp.Compile(`\A(?:` + text + `)\z`)
}

// StreamName returns the name of the stream that a pattern makes from a topic. It is NAME.TOPIC. If the topic has
// capitals, or the name would have more than 200 bytes, it is NAME.topic~HASH, with the topic in small letters and cut
// so that the name has at most 200 bytes. HASH is the base32 form, in small letters and without padding, of the first
// 16 bytes of the topic's SHA-256.
//
// Two topics, or two patterns, never give the same name, even where upper and lower case are not distinguished: no
// pattern's name has a dot, and no topic's name has a tilde.
func (s *Stream) StreamName(topic string) string {
	name := s.Name + "." + topic
	if len(name) <= maxStreamName && strings.ToLower(topic) == topic {
		return name
	}
	sum := sha256.Sum256([]byte(topic))
	end := "~" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
	name = strings.ToLower(name)
	return name[:min(len(name), maxStreamName-len(end))] + end
}

// For returns the stream that a pattern makes from a topic. It equals a table for this topic with all other settings of
// the pattern, and has the same digest as that table.
func (s *Stream) For(topic string) *Stream {
	x := *s
	x.of, x.matches = s, nil
	x.Name = s.StreamName(topic)
	x.Input.Topic, x.Input.Topics, x.Input.MaxTopics = topic, "", maxTopicsDefault
	x.Input.Partitions = slices.Clone(s.Input.Partitions)
	x.Output.Topic = strings.Replace(s.Output.Topic, anyTopic, topic, 1)
	x.DeadLetter.Topic = strings.Replace(s.DeadLetter.Topic, anyTopic, topic, 1)
	if s.User != nil {
		u := *s.User
		u.Population = cmp.Or(u.Population, topic)
		x.User = &u
	}
	return &x
}

// Representative returns the configuration with one stream for each pattern. The topic and the name of that stream have
// the largest possible length. Checks use it to test what all streams of a pattern share, and to find the largest
// length of texts that contain these names. Patterns with the same text get the same topic.
func (c *Config) Representative() *Config {
	x := *c
	x.Streams = nil
	for _, s := range c.Streams {
		if s.of == nil {
			x.Streams = append(x.Streams, s)
		}
	}
	for _, p := range c.Patterns {
		s := p.For(strings.Repeat(fmt.Sprintf("%x", sha256.Sum256([]byte(p.Input.Topics))), 4)[:maxTopic])
		s.Output.Topic, s.DeadLetter.Topic = p.Output.Topic, p.DeadLetter.Topic
		x.Streams = append(x.Streams, s)
	}
	slices.SortStableFunc(x.Streams, func(a, b *Stream) int { return cmp.Compare(a.Name, b.Name) })
	return &x
}

// Taken is a topic that a pattern's stream reads.
type Taken struct{ Stream, Topic string }

// Topics is the input of [Config.Expand].
type Topics struct {
	// Kept are the topics that streams of patterns already read, the oldest first. They take precedence over all
	// others. Expand ignores a topic that no pattern matches. If one pattern reads a topic, the topic is kept for all
	// patterns with the same text.
	Kept []Taken
	// Found are the topics of the cluster, in any order.
	Found []string
	// Written are topics that this process has written tounder its present or an earlier configuration. No stream reads
	// them.
	Written []string
}

// Refusal is a topic that a pattern matches but that no stream of this pattern reads.
type Refusal struct {
	Pattern string `json:"pattern"`
	Topic   string `json:"topic"`
	Reason  string `json:"reason"`
	// Beyond is true if the pattern already has input.max_topics topics.
	Beyond bool `json:"beyond,omitempty"`
}

// Expand returns the configuration with a stream for each topic that a pattern matches, and the topics that match but
// are refused. If c already has a stream made from a pattern, the result has the same *Stream, but only if its topic is
// in Kept.
//
// Three kinds of topics are never read, and are not reported as refused. The first are topics that this process writes
// to, or could write to for another topic: outputs and dead letters of streams and patterns, boundaries, control, and
// the topics of [cluster]. The second are topics whose names begin with "_", by convention a system's, or end in ".dp",
// as those of releases do. The third are topics that a table of the configuration reads.
//
// If two patterns match a topic, one of them reads it: the one in Kept, otherwise the first by name. The other pattern
// is refused the topic, unless both have the same text. Then the operator wants both to read it, and both are charged.
func (c *Config) Expand(t Topics) (*Config, []Refusal) {
	x := *c
	x.Streams = nil
	had := map[string]*Stream{}
	for _, s := range c.Streams {
		if s.of == nil {
			x.Streams = append(x.Streams, s)
		} else {
			had[s.Name] = s
		}
	}
	if len(c.Patterns) == 0 {
		return &x, nil
	}
	e := newExpansion(&x, had, t.Written)
	for _, k := range t.Kept {
		for _, p := range c.Patterns {
			if slices.ContainsFunc(c.Patterns, func(q *Stream) bool {
				return q.Input.Topics == p.Input.Topics && q.StreamName(k.Topic) == k.Stream
			}) && e.matches(p, k.Topic) {
				e.take(p, k.Topic)
			}
		}
	}
	found := slices.Clone(t.Found)
	slices.Sort(found)
	for _, topic := range slices.Compact(found) {
		for _, p := range c.Patterns {
			if e.matches(p, topic) {
				e.take(p, topic)
			}
		}
	}
	slices.SortFunc(x.Streams, func(a, b *Stream) int { return cmp.Compare(a.Name, b.Name) })
	return &x, e.refused
}

// expansion holds the working state of one call of Expand.
type expansion struct {
	c       *Config
	had     map[string]*Stream
	asked   map[string]bool      // pairs of pattern and topic that matches has seen
	names   map[string]bool      // names of streams
	readers map[string][]*Stream // the streams that read a topic
	written map[string]string    // the stream that writes a topic
	taken   map[string]int       // how many topics a pattern reads
	persons map[string]*Stream   // the first stream of each population
	refused []Refusal
}

func newExpansion(c *Config, had map[string]*Stream, written []string) *expansion {
	e := &expansion{
		c: c, had: had, asked: map[string]bool{}, names: map[string]bool{}, readers: map[string][]*Stream{},
		written: map[string]string{}, taken: map[string]int{}, persons: map[string]*Stream{},
	}
	for _, topic := range written {
		e.written[topic] = "an earlier configuration"
	}
	for _, topic := range []string{c.Kafka.ControlTopic, c.Kafka.BoundaryTopic} {
		e.written[topic] = "this process"
	}
	if c.Cluster != nil {
		for _, topic := range c.Cluster.topics() {
			e.written[topic] = "[cluster]"
		}
	}
	for _, s := range c.Streams {
		e.enter(s)
	}
	for _, p := range c.Patterns {
		if letters := p.DeadLetter.Topic; letters != "" && !strings.Contains(letters, anyTopic) {
			e.written[letters] = "stream " + p.Name
		}
	}
	delete(e.written, "")
	return e
}

// enter records the topics that a stream reads and writes.
func (e *expansion) enter(s *Stream) {
	e.names[s.Name] = true
	e.readers[s.Input.Topic] = append(e.readers[s.Input.Topic], s)
	e.written[s.Output.Topic] = "stream " + s.Name
	if s.DeadLetter.Topic != "" {
		e.written[s.DeadLetter.Topic] = "stream " + s.Name
	}
	if s.User != nil && e.persons[s.User.Population] == nil {
		e.persons[s.User.Population] = s
	}
}

// matches reports whether a pattern, if it were the only one, would read a topic. It returns true only once for each
// pattern and topic.
func (e *expansion) matches(p *Stream, topic string) bool {
	key := p.Name + "." + topic
	if e.asked[key] {
		return false
	}
	e.asked[key] = true
	if !p.matches.MatchString(topic) || !isTopic(topic) || strings.HasPrefix(topic, systems) ||
		strings.HasSuffix(topic, released) || e.written[topic] != "" {
		return false
	}
	for _, s := range e.readers[topic] {
		if s.of == nil {
			return false
		}
	}
	for _, other := range e.c.Patterns {
		if instance(other.Output.Topic, topic) || instance(other.DeadLetter.Topic, topic) {
			return false
		}
	}
	return true
}

// instance reports whether a pattern that writes to template could write to topic for some input.
func instance(template, topic string) bool {
	before, after, ok := strings.Cut(template, anyTopic)
	return ok && len(topic) > len(before)+len(after) && strings.HasPrefix(topic, before) &&
		strings.HasSuffix(topic, after)
}

// take makes a stream from a topic, or records why it is refused.
func (e *expansion) take(p *Stream, topic string) {
	s := p.For(topic)
	if old := e.had[s.Name]; old != nil && old.of == p && old.Input.Topic == topic {
		s = old
	}
	if why := e.refuses(p, s); why != "" {
		e.refused = append(e.refused, Refusal{Pattern: p.Name, Topic: topic, Reason: why})
		return
	}
	if e.taken[p.Name] >= p.Input.MaxTopics {
		e.refused = append(e.refused,
			Refusal{p.Name, topic,
				fmt.Sprintf("the stream already has %d topics, as many as input.max_topics "+
					"allows", p.Input.MaxTopics), true})
		return
	}
	e.taken[p.Name]++
	e.enter(s)
	e.c.Streams = append(e.c.Streams, s)
}

// refuses says why a new stream cannot coexist with the others, "" if it can.
func (e *expansion) refuses(p, s *Stream) string {
	for _, other := range e.readers[s.Input.Topic] {
		if other.of.Input.Topics != p.Input.Topics {
			return fmt.Sprintf(
				"[stream.%s] already reads this topic; with both, its records would pay twice: if you want that, give "+
					"both tables the same input.topics", other.of.Name)
		}
	}
	if e.names[s.Name] {
		return "another topic already has a stream of this name: " + s.Name
	}
	for _, w := range []struct{ what, topic string }{{"its output topic ", s.Output.Topic},
		{"its dead-letter topic ", s.DeadLetter.Topic}} {
		if w.topic == "" || w.topic == p.DeadLetter.Topic {
			continue
		}
		switch by := e.written[w.topic]; {
		case !isTopic(w.topic):
			return w.what + "would have too long a name"
		case len(e.readers[w.topic]) > 0:
			return w.what + w.topic + " is read by stream " + e.readers[w.topic][0].Name
		case by != "" && by != "an earlier configuration":
			return w.what + w.topic + " is written by " + by
		}
	}
	if s.User == nil {
		return ""
	}
	if first := e.persons[s.User.Population]; first != nil {
		if s.User.Period != first.User.Period || !s.Privacy.agrees(first.Privacy) {
			return "it has the same population as stream " + first.Name + ", but another period, limit or adjacency"
		}
	}
	return ""
}

// Named returns the stream with that name if a pattern can make it, which is the case if the name consists of a
// pattern's name and a topic; otherwise nil. It is for commands that cannot ask the cluster for its topics. It returns
// nil for a name with a hash, because the hash does not tell the topic.
func (c *Config) Named(name string) *Stream {
	if s := c.Stream(name); s != nil {
		return s
	}
	_, topic, ok := strings.Cut(name, ".")
	if !ok {
		return nil
	}
	unbounded := *c
	unbounded.Streams = slices.DeleteFunc(slices.Clone(c.Streams), func(s *Stream) bool { return s.of != nil })
	x, _ := unbounded.Expand(Topics{Found: []string{topic}})
	return x.Stream(name)
}

// checkPattern checks the keys of a stream's input that select its topics.
func (d *document) checkPattern(s *Stream, key toml.Key) {
	input := under(key, "input")
	topic, topics, most := under(input, "topic"), under(input, "topics"), under(input, "max_topics")
	if d.Written(input) == nil || !d.Sound(input) {
		return
	}
	switch given := d.Written(topics) != nil && d.Written(topics) != ""; {
	case !given && d.Written(topic) == nil:
		d.Add(topic, -1, "required", nil)
	case !given && d.Sound(most) && s.Input.MaxTopics != maxTopicsDefault:
		d.Add(most, -1, "is only for input.topics", s.Input.MaxTopics)
	case !given || !d.Sound(topics):
	case d.Written(topic) != nil:
		d.Add(topics, -1, "must be absent with input.topic", s.Input.Topics)
	default:
		var err error
		if s.matches, err = compilePattern(s.Input.Topics); err != nil {
			d.Add(topics, -1,
				"must be a regular expression (RE2): "+strings.TrimPrefix(err.Error(), "error parsing regexp: "),
				s.Input.Topics)
		}
	}
	if !s.Dynamic() {
		return
	}
	if at := under(input, "start"); s.Input.Start >= 0 && d.Sound(at) {
		d.Add(at, -1, "must be \"earliest\" or \"latest\" with input.topics: each topic has its own offsets", nil)
	}
	d.readTemplate(&s.Output.Topic, under(key, "output", "topic"), true)
	if s.DeadLetter.Topic != "" {
		d.readTemplate(&s.DeadLetter.Topic, under(key, "dead_letter", "topic"), false)
	}
	if s.Output.Topic == "" {
		s.Output.Topic = anyTopic + released
	}
	if s.DeadLetter.Topic == s.Output.Topic {
		d.Add(under(key, "dead_letter", "topic"), -1, "must not be output.topic", s.DeadLetter.Topic)
	}
}

// readTemplate checks the template from which a pattern makes the names of the topics that it writes to.
func (d *document) readTemplate(template *string, key toml.Key, own bool) {
	if !d.Sound(key) || *template == "" {
		return
	}
	switch stars := strings.Count(*template, anyTopic); {
	case own && stars == 0:
		d.Add(key, -1,
			"must contain \"*\" with input.topics: each topic needs its own output, and \"*\" stands for the "+
				"topic's name", *template)
	case *template == anyTopic:
		d.Add(key, -1, "must not be \"*\" alone: it stands for the input topic, so input and output would be the "+
			"same", *template)
	}
}

// checkTemplates reports two patterns that could write to the same topic.
func (d *document) checkTemplates(c *Config) {
	written := map[string]toml.Key{}
	for _, s := range d.byLine(c) {
		if !s.Dynamic() {
			continue
		}
		out := toml.Key{"stream", s.Name, "output", "topic"}
		if d.Sound(out) {
			if other, ok := written[s.Output.Topic]; ok {
				d.Note(out, -1, "must differ from "+other.String()+": they would name the same topic", s.Output.Topic)
			} else {
				written[s.Output.Topic] = out
			}
		}
	}
	for _, s := range c.Streams {
		letters := toml.Key{"stream", s.Name, "dead_letter", "topic"}
		if other, ok := written[s.DeadLetter.Topic]; ok && d.Sound(letters) && s.DeadLetter.Topic != "" {
			d.Note(letters, -1, "must differ from "+other.String()+": they would name the same topic",
				s.DeadLetter.Topic)
		}
	}
}

// part separates the tables of a file into streams and patterns.
func (c *Config) part() {
	all := c.Streams
	c.Streams = nil
	for _, s := range all {
		if s.Dynamic() {
			c.Patterns = append(c.Patterns, s)
		} else {
			c.Streams = append(c.Streams, s)
		}
	}
}

// reads identifies the input of a stream: the topic's name, or the text of its pattern. Streams with equal results read
// the same topics.
func (s *Stream) reads() string { return s.Input.Topic + "\n" + s.Input.Topics }
