package config

import (
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"streamdp/internal/column"
	"streamdp/internal/fault"
)

// validate checks what concerns more than one value. A value that has a fault
// already is left out of every check: what follows from a fault is none.
func (d *document) validate(c *Config) {
	d.checkBrokers(c)
	d.checkTLS(c)
	for _, s := range c.Streams {
		key := toml.Key{"stream", s.Name}
		d.checkMechanism(s, key)
		d.checkInput(s, key)
		d.checkScaling(s, key)
		d.checkHorizon(s, key)
		d.checkPrivacy(s, key)
		d.checkEstimator(s, key)
		d.checkValues(s, key)
	}
	d.checkTopics(c)
	d.checkLimits(c)
}

// under returns the key below one.
func under(key toml.Key, names ...string) toml.Key {
	return append(key[:len(key):len(key)], names...)
}

func (d *document) checkBrokers(c *Config) {
	brokers := toml.Key{"kafka", "brokers"}
	if !d.sound(brokers) {
		return
	}
	if len(c.Kafka.Brokers) == 0 {
		d.add(brokers, -1, "must name at least one broker", nil)
		return
	}
	d.checkTwice(brokers, c.Kafka.Brokers)
	commits := toml.Key{"state", "commit_interval"}
	remote := func(b string) bool { return !loopback(b) }
	if d.sound(commits) && c.State.CommitInterval == 0 && slices.ContainsFunc(c.Kafka.Brokers, remote) {
		d.add(commits, -1, "commits at every step are for tests: all brokers must be loopback addresses", "0s")
	}
}

// checkTLS notes half of a client's certificate.
func (d *document) checkTLS(c *Config) {
	t := c.Kafka.TLS
	if t == nil || (t.CertFile == "") == (t.KeyFile == "") {
		return
	}
	has, lacks := "key_file", "cert_file"
	if t.KeyFile == "" {
		has, lacks = lacks, has
	}
	if d.sound(toml.Key{"kafka", "tls", lacks}) {
		d.add(toml.Key{"kafka", "tls", has}, -1, "needs "+lacks+" too", nil)
	}
}

// loopback reports whether host:port is this machine.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// checkTwice notes the elements of a list that stood in it before.
func (d *document) checkTwice(key toml.Key, list []string) {
	for i, s := range list {
		if slices.Contains(list[:i], s) {
			d.add(key, i, "must not be there twice", s)
		}
	}
}

func (d *document) checkMechanism(s *Stream, key toml.Key) {
	first := toml.Key(nil)
	for _, name := range mechanisms {
		here := under(key, name)
		switch {
		case d.written(here) == nil:
		case first == nil:
			first = here
		default:
			d.note(here, -1, "a stream has exactly one mechanism, and this one has ["+first.String()+"]", nil)
		}
	}
	if first == nil && !d.hasUnknownTable(key) {
		d.note(key, -1, "a mechanism is required, such as ["+under(key, "moments").String()+"]", nil)
	}
	// Streams of other mechanisms have other steps, or none.
	switch step := under(key, "step"); {
	case (s.Moments != nil || s.Adam != nil) && d.written(step) == nil:
		d.add(step, -1, "required", nil)
	case s.SGD != nil && d.written(step) != nil:
		d.note(step, -1, "must not be there: sgd has steps of its own length", s.Step)
	case s.Refit != nil && s.Moments == nil && s.Adam == nil && d.written(step) != nil:
		d.note(step, -1, "must not be there: steps of refit are its windows", s.Step)
	}
}

// hasUnknownTable reports whether a stream has a table that the schema has not:
// a mechanism under a wrong name, perhaps, which is a fault already.
func (d *document) hasUnknownTable(key toml.Key) bool {
	t, _ := d.written(key).(map[string]any)
	for name, v := range t {
		if _, isTable := v.(map[string]any); isTable && root().at("stream", "NAME", name) == nil {
			return true
		}
	}
	return false
}

var csvColumn = regexp.MustCompile(`^[1-9][0-9]{0,5}$`)

func (d *document) checkInput(s *Stream, key toml.Key) {
	partitions := under(key, "input", "partition")
	if d.sound(partitions) {
		if len(s.Input.Partitions) == 0 {
			d.add(partitions, -1, "must name at least one partition", nil)
		}
		for i, p := range s.Input.Partitions {
			if slices.Contains(s.Input.Partitions[:i], p) {
				d.add(partitions, i, "must not be there twice", p)
			}
		}
		slices.Sort(s.Input.Partitions)
	}

	columns := under(key, "input", "columns")
	if !d.sound(columns) {
		return
	}
	if s.Gradients() {
		d.checkGradients(s, key)
		return
	}
	names := s.Input.Columns
	if d.written(columns) == nil {
		d.add(columns, -1, "required", nil)
		return
	}
	if len(names) == 0 {
		d.add(columns, -1, "must name at least one column", nil)
	}
	d.checkTwice(columns, names)
	if !d.sound(under(key, "input", "codec")) {
		return
	}
	for i, name := range names {
		switch s.Input.Codec {
		case "csv":
			if !csvColumn.MatchString(name) {
				d.add(columns, i, `csv columns must be positions from "1" to "999999"`, name)
			}
		case "json":
			path, ok := column.Path(name)
			if !ok {
				d.add(columns, i, `must be a name, or names joined by single dots; \. is a dot and \\ a backslash in a name`, name)
				continue
			}
			for _, other := range names {
				if outer, ok := column.Path(other); ok && len(outer) < len(path) && slices.Equal(outer, path[:len(outer)]) {
					d.add(columns, i, "must not lie inside another column, which is a number", name)
				}
			}
		}
	}
}

// checkScaling brings centre and scale to one number per column.
func (d *document) checkScaling(s *Stream, key toml.Key) {
	if !d.sound(under(key, "input", "columns")) {
		return
	}
	columns := len(s.Input.Columns)
	each := func(here toml.Key, list *[]float64) {
		if !d.sound(here) || s.Gradients() {
			return
		}
		if _, isList := d.written(here).([]any); !isList {
			*list = slices.Repeat(*list, columns)
		} else if len(*list) != columns {
			d.add(here, -1, fmt.Sprintf("must be one number, or one for each of the %d columns", columns), nil)
		}
	}
	each(under(key, "centre"), &s.Centre)
	each(under(key, "scale"), &s.Scale)
}

func (d *document) checkHorizon(s *Stream, key toml.Key) {
	on, horizon := under(key, "on_horizon"), under(key, "horizon")
	if d.written(on) == nil || !d.sound(on) || !d.sound(horizon) {
		return
	}
	if s.Horizon == 0 {
		d.add(on, -1, "needs a horizon", s.OnHorizon)
		return
	}
	if m := s.Moments; s.OnHorizon == "continue" && m != nil {
		switch {
		case m.Factorization == "sqrt" || m.Factorization == "dense":
			d.add(on, -1, fmt.Sprintf(`must not be "continue": factorization %q ends at the horizon`, m.Factorization), nil)
		case m.Normalise:
			d.add(on, -1, `must not be "continue": normalised noise ends at the horizon`, nil)
		}
	}
}

func (d *document) checkPrivacy(s *Stream, key toml.Key) {
	p := &s.Privacy
	delta, limitDelta := under(key, "privacy", "delta"), under(key, "privacy", "limit_delta")
	if d.written(limitDelta) == nil {
		p.LimitDelta = p.Delta
	}
	if d.sound(delta) && d.sound(limitDelta) && p.LimitDelta < p.Delta {
		d.add(limitDelta, -1, "must be at least delta, "+strconv.FormatFloat(p.Delta, 'g', -1, 64), p.LimitDelta)
	}
	epsilon, limitEpsilon := under(key, "privacy", "epsilon"), under(key, "privacy", "limit_epsilon")
	if d.sound(epsilon) && d.sound(limitEpsilon) && p.LimitEpsilon < p.Epsilon {
		d.add(limitEpsilon, -1, "must be at least epsilon, "+strconv.FormatFloat(p.Epsilon, 'g', -1, 64), p.LimitEpsilon)
	}
}

// follows names, for a key of a mechanism, the keys whose faults make a fault of
// this one mean nothing.
var follows = map[string][]string{
	"moments.decay":         {"workload"},
	"moments.window":        {"workload"},
	"moments.covariance":    {"workload"},
	"moments.buffers":       {"factorization"},
	"moments.bands":         {"factorization"},
	"moments.normalise":     {"factorization", "horizon"},
	"moments.tune":          {"horizon"},
	"moments.factorization": {"horizon", "method", "on_horizon"},
	"moments.nu":            {"weights", "inflation"},
	"moments.split":         {"method"},
	"moments.tau":           {"method"},
	"moments.metric":        {"method"},
	"moments.method":        {"step"},
	"moments.psd_floor":     {"covariance", "workload"},
	"sgd.target":            {"columns"},
	"sgd.zeta":              {"clip"},
	"sgd.stat":              {"clip"},
	"sgd.bootstrap":         {"clip"},
	"sgd.curvature":         {"clip_x"},
	"refit.target":          {"columns"},
	"refit.stride":          {"window"},
	"refit.accounting":      {"solver"},
	"refit.residual_clip":   {"clip_y"},
	"refit.transforms":      {"iterations"},
	"adam.dim":              {"mode"},
	"adam.model":            {"mode"},
	"adam.model.target":     {"columns", "mode"},
	"adam.model.classes":    {"model.loss"},
	"adam.model.hidden":     {"model.loss"},
	"adam.tau":              {"method"},
	"adam.nu":               {"method"},
	"adam.mean_clip":        {"method", "clip"},
	"adam.v_floor":          {"method", "negative"},
	"adam.negative":         {"method"},
	"adam.method":           {"step"},
	"adam.update_clip":      {"negative"},
	"adam.schedule":         {"horizon"},
	"adam.factorization":    {"horizon", "dim"},
}

// needs says, for a key of a mechanism that another one's value requires, so.
var needs = map[string]func(s *Stream) string{
	"moments.decay":  func(s *Stream) string { return "required for workload " + strconv.Quote(s.Moments.Workload) },
	"moments.window": func(s *Stream) string { return "required for workload " + strconv.Quote(s.Moments.Workload) },
	"sgd.zeta":       func(s *Stream) string { return "required for clip " + strconv.Quote(s.SGD.Clip) },
	"sgd.radius":     func(s *Stream) string { return "required for method " + strconv.Quote(s.SGD.Method) },

	"adam.tau":           func(s *Stream) string { return "required for method " + strconv.Quote(s.Adam.Method) },
	"adam.dim":           func(s *Stream) string { return "required for mode " + strconv.Quote(s.Adam.Mode) },
	"adam.model.classes": func(s *Stream) string { return "required for loss " + strconv.Quote(s.Adam.Model.Loss) },
	"adam.model.hidden":  func(s *Stream) string { return "required for loss " + strconv.Quote(s.Adam.Model.Loss) },
}

// checkEstimator has the mechanism's package check its configuration.
func (d *document) checkEstimator(s *Stream, key toml.Key) {
	endless := s.OnHorizon == "continue"
	if m := s.Moments; m != nil {
		m.Columns, m.Step, m.Horizon, m.Centre, m.Scale, m.Endless = len(s.Input.Columns), s.Step, s.Horizon, s.Centre, s.Scale, endless
	}
	if m := s.SGD; m != nil {
		m.Columns, m.Horizon, m.Centre, m.Scale, m.Endless = s.Input.Columns, s.Horizon, s.Centre, s.Scale, endless
	}
	if m := s.Refit; m != nil {
		m.Columns, m.Horizon, m.Centre, m.Scale, m.Endless = s.Input.Columns, s.Horizon, s.Centre, s.Scale, endless
	}
	if m := s.Adam; m != nil {
		m.Step, m.Horizon, m.Endless = s.Step, s.Horizon, endless
		if m.Model != nil && m.Mode == "model" {
			m.Columns, m.Target = len(s.Input.Columns), slices.Index(s.Input.Columns, m.Model.Target)
		}
	}
	m := s.mechanism()
	if m == nil {
		return
	}
	table := s.Mechanism()
	if s.SGD != nil {
		d.clearOthers(root().at("stream", "NAME", table), under(key, table), s.SGD.Method, reflect.ValueOf(s.SGD).Elem())
	}
	m.Defaults()
	// Some rules of the mechanism are about keys of the stream.
	locate := func(name string) toml.Key {
		names := strings.Split(name, ".")
		switch n := root().at("stream", "NAME"); {
		case n.at(append([]string{table}, names...)...) != nil:
			return under(key, append([]string{table}, names...)...)
		case n.at("input", name) != nil:
			return under(key, "input", name)
		case n.at(name) != nil:
			return under(key, name)
		}
		return under(key, table)
	}
	faults := fault.All(m.Validate())
	if s.Moments != nil && d.sound(under(key, "privacy", "adjacency")) {
		faults = append(faults, fault.All(s.Moments.ValidateFor(s.Privacy.Adjacency))...)
	}
	for _, err := range faults {
		f, ok := err.(*fault.Fault)
		if !ok {
			d.note(locate(""), -1, err.Error(), nil)
			continue
		}
		here := locate(f.Key)
		sound := d.sound(here)
		if n := root().at("stream", "NAME", table, f.Key); n != nil && n.of != "" {
			sound = sound && d.sound(locate("method"))
		}
		for _, cause := range follows[table+"."+f.Key] {
			sound = sound && d.sound(locate(cause))
		}
		need, missing := needs[table+"."+f.Key], d.written(here) == nil
		switch {
		case !sound:
		case missing && need != nil:
			d.add(here, -1, need(s), nil)
		default:
			d.add(here, -1, f.Rule, f.Value)
		}
	}
}

// clearOthers takes the defaults of keys that another method has out of a table.
func (d *document) clearOthers(n *node, key toml.Key, method string, v reflect.Value) {
	for _, c := range n.children {
		if c.of != "" && c.of != method && d.written(under(key, c.name)) == nil {
			field(v, c.name).SetZero()
		}
	}
}

// checkValues checks that the mechanism publishes what output.values asks for.
func (d *document) checkValues(s *Stream, key toml.Key) {
	values := under(key, "output", "values")
	if !d.sound(values) {
		return
	}
	d.checkTwice(values, s.Output.Values)
	if s.mechanism() == nil {
		return
	}
	// What the names of its values depend on.
	for _, name := range []string{"workload", "covariance", "intervals", "solver", "intercept", "method", "release"} {
		if !d.sound(under(key, s.Mechanism(), name)) {
			return
		}
	}
	if !d.sound(under(key, "centre")) || !d.sound(under(key, "scale")) {
		return
	}
	published := s.mechanism().Values()
	for i, name := range s.Output.Values {
		if !slices.Contains(published, name) {
			d.add(values, i, "must be a value that this stream publishes: "+alternatives(published), name)
		}
	}
}

// checkTopics checks that no topic is written that is read, nor by two writers.
func (d *document) checkTopics(c *Config) {
	type use struct {
		key   toml.Key
		topic string
	}
	var inputs, outputs []use
	writes := func(key toml.Key) {
		if s, ok := d.written(key).(string); ok {
			if s, broken := d.expand(key, -1, s); broken == "" && s != "" {
				outputs = append(outputs, use{key, s})
			}
		}
	}
	writes(toml.Key{"kafka", "control_topic"})
	for _, s := range c.Streams {
		key := toml.Key{"stream", s.Name}
		if in := under(key, "input", "topic"); d.sound(in) {
			inputs = append(inputs, use{in, s.Input.Topic})
		}
		if out := under(key, "output", "topic"); d.sound(out) {
			writes(out)
		}
		writes(under(key, "dead_letter", "topic"))
	}
	for i, out := range outputs {
		for _, in := range inputs {
			if in.topic == out.topic {
				d.note(out.key, -1, "must not be a topic that is read, as "+in.key.String()+" is", out.topic)
				break
			}
		}
		for _, other := range outputs[:i] {
			if other.topic == out.topic {
				d.note(out.key, -1, "must be a topic of its own, not that of "+other.key.String(), out.topic)
				break
			}
		}
	}
}

// checkLimits checks that streams which read one topic agree on the limit and
// its adjacency: it belongs to the input.
func (d *document) checkLimits(c *Config) {
	first := map[string]*Stream{}
	streams := slices.Clone(c.Streams)
	slices.SortStableFunc(streams, func(a, b *Stream) int {
		return d.line(toml.Key{"stream", a.Name}, -1) - d.line(toml.Key{"stream", b.Name}, -1)
	})
	for _, s := range streams {
		if !d.sound(toml.Key{"stream", s.Name, "input", "topic"}) {
			continue
		}
		other := first[s.Input.Topic]
		if other == nil {
			first[s.Input.Topic] = s
			continue
		}
		// cause is the key that the value comes from where it is not written.
		agree := func(name, cause string, mine, theirs any) {
			for _, stream := range []string{s.Name, other.Name} {
				privacy := toml.Key{"stream", stream, "privacy"}
				if !d.sound(under(privacy, name)) || !d.sound(under(privacy, cause)) {
					return
				}
			}
			if mine != theirs {
				d.note(toml.Key{"stream", s.Name, "privacy", name}, -1,
					fmt.Sprintf("must be that of [stream.%s], which reads the same topic: %#v", other.Name, theirs), mine)
			}
		}
		mine, theirs := s.Privacy, other.Privacy
		agree("limit_epsilon", "limit_epsilon", mine.LimitEpsilon, theirs.LimitEpsilon)
		agree("limit_delta", "delta", mine.LimitDelta, theirs.LimitDelta)
		agree("adjacency", "adjacency", mine.Adjacency.String(), theirs.Adjacency.String())
	}
}
