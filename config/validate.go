package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/streamdp/streamdp/dp"
	"github.com/streamdp/streamdp/internal/fault"
	"github.com/streamdp/streamdp/internal/toml"
)

// validate makes the checks that concern several values. It skips a check if one of the values already has a fault,
// because any further fault might only follow from it.
func (d *document) validate(c *Config) {
	d.checkBrokers(c)
	d.checkPair(c.Kafka.TLS, toml.Key{"kafka", "tls"})
	d.checkSASL(c)
	d.checkListener(c)
	d.checkRegistry(c)
	d.checkTrace(c)
	for _, s := range c.Streams {
		key := toml.Key{"stream", s.Name}
		d.checkPattern(s, key)
		d.checkMechanism(s, key)
		d.checkInput(s, key)
		d.checkSchemas(c, s, key)
		d.checkScaling(s, key)
		d.checkMerge(s, key)
		d.checkClock(c, s, key)
		d.checkHorizon(s, key)
		d.checkPrivacy(s, key)
		d.checkUser(c, s, key)
		d.checkEstimator(s, key)
		d.checkValues(s, key)
		d.checkEvery(s, key)
	}
	d.checkTopics(c)
	d.checkTemplates(c)
	d.checkLimits(c)
	d.checkPopulations(c)
	d.checkCluster(c)
}

// under returns the key of an entry inside the table key.
func under(key toml.Key, names ...string) toml.Key {
	return append(key[:len(key):len(key)], names...)
}

func (d *document) checkBrokers(c *Config) {
	brokers := toml.Key{"kafka", "brokers"}
	if !d.Sound(brokers) {
		return
	}
	if len(c.Kafka.Brokers) == 0 {
		d.Add(brokers, -1, "must name at least one broker", nil)
		return
	}
	checkTwice(d, brokers, c.Kafka.Brokers)
	commits := toml.Key{"state", "commit_interval"}
	remote := func(b string) bool { return !Loopback(b) }
	if d.Sound(commits) && c.State.CommitInterval == 0 && slices.ContainsFunc(c.Kafka.Brokers, remote) {
		d.Add(commits, -1, "must be at least \"10ms\" unless all brokers are loopback addresses: commits at every "+
			"step are for tests", "0s")
	}
}

// checkPair reports a certificate without its key, or a key without its certificate.
func (d *document) checkPair(t *TLS, key toml.Key) {
	if t == nil || (t.CertFile == "") == (t.KeyFile == "") {
		return
	}
	has, lacks := "key_file", "cert_file"
	if t.KeyFile == "" {
		has, lacks = lacks, has
	}
	if d.Sound(under(key, lacks)) {
		d.Add(under(key, has), -1, "needs "+lacks+" too", nil)
	}
}

// checkListener reports a listener that anybody on the network could read.
func (d *document) checkListener(c *Config) {
	h, key := &c.HTTP, toml.Key{"http", "listen"}
	if !d.Sound(key) || Loopback(h.Listen) || h.TLS != nil || h.BasicAuth != nil || h.InsecureListen ||
		!d.Sound(toml.Key{"http", "insecure_listen"}) {
		return
	}
	d.Add(key, -1,
		"must be a loopback address, unless there is [http.tls] or [http.basic_auth], or "+
			"http.insecure_listen = true", h.Listen)
}

// Loopback reports whether only this machine can reach host:port.
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// checkTwice reports elements that are repeated in a list.
func checkTwice[T comparable](d *document, key toml.Key, list []T) {
	for i, x := range list {
		if slices.Contains(list[:i], x) {
			d.Add(key, i, "must not be repeated", x)
		}
	}
}

func (d *document) checkMechanism(s *Stream, key toml.Key) {
	first := toml.Key(nil)
	for _, m := range mechanisms {
		here := under(key, m.name)
		switch {
		case d.Written(here) == nil:
		case first == nil:
			first = here
		default:
			d.Note(here, -1, "a stream has exactly one mechanism, and this one has ["+first.String()+"]", nil)
		}
	}
	if first == nil && !d.hasUnknownTable(key) {
		d.Note(key, -1, "a mechanism is required, such as ["+under(key, "moments").String()+"]", nil)
	}
	m, _ := s.mechanism()
	switch step := under(key, "step"); {
	case m == nil:
	case m.steps == "" && d.Written(step) == nil && m.step == 0:
		d.Add(step, -1, "required", nil)
	case d.Written(step) == nil:
		s.Step = m.step
	case m.steps != "" && d.Sound(step) && (m.clock != "" || s.Step.Clock() == 0):
		d.Add(step, -1, "must be absent: "+m.steps, toml.Scalar(d.Written(step)))
	}
}

// hasUnknownTable reports whether a stream has a table that is not in the schema. The table may be a misspelt
// mechanism, and is already reported as an unknown key.
func (d *document) hasUnknownTable(key toml.Key) bool {
	t, _ := d.Written(key).(map[string]any)
	for name, v := range t {
		if _, isTable := v.(map[string]any); isTable && root().At("stream", "NAME", name) == nil {
			return true
		}
	}
	return false
}

func (d *document) checkInput(s *Stream, key toml.Key) {
	partitions := under(key, "input", "partition")
	if d.Sound(partitions) {
		if len(s.Input.Partitions) == 0 {
			d.Add(partitions, -1, "must name at least one partition", nil)
		}
		checkTwice(d, partitions, s.Input.Partitions)
		slices.Sort(s.Input.Partitions)
	}

	columns := under(key, "input", "columns")
	if !d.Sound(columns) {
		return
	}
	if s.Gradients() {
		d.checkGradients(s, key)
		return
	}
	names := s.Input.Columns
	if d.Written(columns) == nil {
		d.Add(columns, -1, "required", nil)
		return
	}
	if len(names) == 0 {
		d.Add(columns, -1, "must name at least one column", nil)
	}
	checkTwice(d, columns, names)
	d.checkColumns(s, key)
}

// checkScaling checks centre and scale, and expands them to one number per column.
func (d *document) checkScaling(s *Stream, key toml.Key) {
	if !d.Sound(under(key, "input", "columns")) {
		return
	}
	columns := len(s.Input.Row())
	m, _ := s.mechanism()
	auto := s.Moments != nil && math.IsNaN(s.Moments.Clip)
	if m != nil && m.warmup != nil {
		_, x, _ := m.warmup.bounds(s)
		auto = math.IsNaN(*x)
	}
	each := func(here toml.Key, list *[]float64) {
		if !d.Sound(here) || s.Gradients() {
			return
		}
		if auto && d.Written(here) == nil {
			*list = []float64{math.NaN()}
		}
		if _, isList := d.Written(here).([]any); !isList {
			*list = slices.Repeat(*list, columns)
		} else if len(*list) != columns {
			d.Add(here, -1,
				fmt.Sprintf("must be one number, or a list with one for each of the %d "+
					"%s", columns, s.Input.what()), nil)
		}
	}
	each(under(key, "centre"), &s.Centre)
	each(under(key, "scale"), &s.Scale)
	d.checkAuto(s, key)
}

// checkMerge reports settings that cannot be used with merge = true.
func (d *document) checkMerge(s *Stream, key toml.Key) {
	merge := under(key, "merge")
	if !s.Merge {
		return
	}
	m, _ := s.mechanism()
	if m != nil && m.merge == nil {
		d.Add(merge, -1,
			"must be false for "+m.name+
				": only moments and refits compute sums that can be added before the noise is drawn", nil)
		return
	}
	if s.automatic() {
		d.Add(merge, -1, "must be false if centre, scale or a clip norm is \"auto\": a warm-up reads one "+
			"partition", nil)
	}
	if s.DeadLetter.Mode != "off" {
		d.Add(under(key, "dead_letter", "mode"), -1,
			"must be \"off\" with merge = true: dead letters can only follow one partition", s.DeadLetter.Mode)
	}
	if s.Input.Start >= 0 {
		d.Add(under(key, "input", "start"), -1,
			"must be \"earliest\" or \"latest\" with merge = true: each partition has its own offsets", nil)
	}
}

// automatic reports whether any value is "auto", so that a warm-up must find it. This holds for all mechanisms.
func (s *Stream) automatic() bool {
	return s.Automatic() || s.Moments != nil && math.IsNaN(s.Moments.Clip) ||
		slices.ContainsFunc(slices.Concat(s.Centre, s.Scale), math.IsNaN)
}

// checkClock reports settings that cannot be used with steps by the clock.
func (d *document) checkClock(c *Config, s *Stream, key toml.Key) {
	step, most := under(key, "step"), under(key, "step_max")
	m, _ := s.mechanism()
	switch {
	case !d.Sound(step):
		return
	case s.Step.Clock() == 0:
		if d.Sound(most) && strconv.FormatUint(s.StepMax, 10) != stepMaxDefault {
			d.Add(most, -1, "is only for steps by the clock, such as step = \"1m\"", s.StepMax)
		}
		return
	case m != nil && (m.clock != "" || m.merge == nil):
		d.Add(step, -1, "must be a number of offsets for "+m.name+": "+cmp.Or(m.clock, "it does not sum the records "+
			"of a step"),
			toml.Scalar(d.Written(step)))
		return
	case m != nil && m.bounded != "" && d.Written(most) == nil:
		d.Add(most, -1, "required with a step by the clock: "+m.bounded, nil)
	}
	if s.automatic() {
		d.Add(step, -1, "must be a number of offsets if centre, scale or clip is \"auto\": the length of a warm-up "+
			"is a number of offsets",
			toml.Scalar(d.Written(step)))
	}
	if s.DeadLetter.Mode != "off" {
		d.Add(under(key, "dead_letter", "mode"), -1, "must be \"off\" with steps by the clock", s.DeadLetter.Mode)
	}
	if topic := (toml.Key{"kafka", "boundary_topic"}); d.Sound(topic) && c.Kafka.BoundaryTopic == "" {
		d.Add(topic, -1, "required, because ["+key.String()+"] has steps by the clock", nil)
	}
}

func (d *document) checkHorizon(s *Stream, key toml.Key) {
	on, horizon := under(key, "on_horizon"), under(key, "horizon")
	if d.Written(on) == nil || !d.Sound(on) || !d.Sound(horizon) {
		return
	}
	if s.Horizon == 0 {
		d.Add(on, -1, "needs a horizon", s.OnHorizon)
		return
	}
	if m, _ := s.mechanism(); s.OnHorizon == "continue" && m != nil && m.ends != nil {
		if why := m.ends(s); why != "" {
			d.Add(on, -1, `must not be "continue": `+why, nil)
		}
	}
}

func (d *document) checkPrivacy(s *Stream, key toml.Key) {
	p := &s.Privacy
	delta, limitDelta := under(key, "privacy", "delta"), under(key, "privacy", "limit_delta")
	if d.Written(limitDelta) == nil {
		p.LimitDelta = p.Delta
	}
	if d.Sound(delta) && d.Sound(limitDelta) && p.LimitDelta < p.Delta {
		d.Add(limitDelta, -1, "must be at least delta, "+strconv.FormatFloat(p.Delta, 'g', -1, 64), p.LimitDelta)
	}
	epsilon, limitEpsilon := under(key, "privacy", "epsilon"), under(key, "privacy", "limit_epsilon")
	if d.Written(limitEpsilon) == nil {
		p.LimitEpsilon = p.Epsilon
	}
	if d.Sound(epsilon) && d.Sound(delta) {
		switch mu, err := dp.Mu(p.Epsilon, p.Delta); {
		case err != nil || dp.CheckDelta(mu, p.Delta) == nil:
		case dp.LeastDelta(mu) < 1:
			d.Add(delta, -1,
				fmt.Sprintf("must be at least %.2g: for a smaller delta, the part of the noise's tail that is cut off "+
					"would matter", dp.LeastDelta(mu)), p.Delta)
		default:
			d.Add(epsilon, -1,
				"must be smaller: with so little noise, the part of its tail that is cut off would matter for "+
					"every delta below 1", p.Epsilon)
		}
	}
	if d.Sound(epsilon) && d.Sound(limitEpsilon) && p.LimitEpsilon < p.Epsilon {
		d.Add(limitEpsilon, -1, "must be at least epsilon, "+strconv.FormatFloat(p.Epsilon, 'g', -1, 64),
			p.LimitEpsilon)
	}
}

// follows lists, for a key, the other keys on which its check depends. If one of these keys has a fault, a fault of the
// key itself is not reported. For example, "workload" decides whether "moments.decay" is required.
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
	"moments.warmup":        {"step", "centre", "scale", "clip"},
	"moments.warmup_mode":   {"centre", "scale", "clip"},
	"sgd.target":            {"columns"},
	"sgd.zeta":              {"clip"},
	"sgd.stat":              {"clip"},
	"sgd.bootstrap":         {"clip"},
	"sgd.curvature":         {"clip_x"},
	"refit.target":          {"columns"},
	"refit.window":          {"step", "step_max"},
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

// needs gives the message about a missing key that the value of another key requires.
var needs = map[string]func(s *Stream) string{
	"moments.decay":  func(s *Stream) string { return "required for workload " + strconv.Quote(s.Moments.Workload) },
	"moments.window": func(s *Stream) string { return "required for workload " + strconv.Quote(s.Moments.Workload) },
	"refit.window":   func(s *Stream) string { return "required, or a step by the clock, such as step = \"1h\"" },
	"sgd.zeta":       func(s *Stream) string { return "required for clip " + strconv.Quote(s.SGD.Clip) },
	"sgd.radius":     func(s *Stream) string { return "required for method " + strconv.Quote(s.SGD.Method) },

	"adam.tau":           func(s *Stream) string { return "required for method " + strconv.Quote(s.Adam.Method) },
	"adam.dim":           func(s *Stream) string { return "required for mode " + strconv.Quote(s.Adam.Mode) },
	"adam.model.classes": func(s *Stream) string { return "required for loss " + strconv.Quote(s.Adam.Model.Loss) },
	"adam.model.hidden":  func(s *Stream) string { return "required for loss " + strconv.Quote(s.Adam.Model.Loss) },
}

// checkEstimator lets the mechanism's package check its configuration.
func (d *document) checkEstimator(s *Stream, key toml.Key) {
	m, e := s.mechanism()
	if m == nil {
		return
	}
	m.bind(s, s.OnHorizon == "continue")
	if s.Merge && m.merge != nil {
		n := len(s.Input.Partitions)
		if s.Input.All() {
			n = FewestMerged
		}
		m.merge(s, max(1, n))
		e = m.of(s)
	}
	d.clearOthers(root().At("stream", "NAME", m.name), under(key, m.name), reflect.ValueOf(e).Elem())
	e.Defaults()
	d.checkWarmup(s, key)
	checked := e
	if s.Automatic() {
		_, checked = s.Standing().mechanism()
	}
	faults := fault.All(checked.Validate())
	if m.check != nil && d.Sound(under(key, "privacy", "adjacency")) {
		faults = append(faults, fault.All(m.check(s))...)
	}
	for _, err := range faults {
		f, ok := err.(*fault.Fault)
		if !ok {
			d.Note(under(key, s.Mechanism()), -1, err.Error(), nil)
			continue
		}
		d.addEstimator(s, key, f)
	}
}

// addEstimator records a fault that the mechanism's package found, unless it follows from
// one that is recorded already.
func (d *document) addEstimator(s *Stream, key toml.Key, f *fault.Fault) {
	table := s.Mechanism()
	here, n := locate(key, table, f.Key)
	causes := append([]string{f.Key}, follows[table+"."+f.Key]...)
	if n.Parent.Of != "" {
		causes = append(causes, "method")
	}
	for _, name := range causes {
		at, _ := locate(key, table, name)
		// If the key stands at its former place, the fault is reported there.
		if !d.Sound(at) || !d.Sound(under(key, table, name)) {
			return
		}
	}
	if need := needs[table+"."+f.Key]; need != nil && d.Written(here) == nil {
		d.Add(here, -1, need(s), nil)
	} else {
		d.Add(here, -1, f.Rule, f.Value).Hint = s.Input.severalOf(f.Value)
	}
}

// locate finds the key to which a mechanism's package refers by name. It may be in the mechanism's table, in a flat
// table inside it, or in the stream's table.
func locate(stream toml.Key, table, name string) (toml.Key, *toml.Node) {
	top, names := root().At("stream", "NAME"), strings.Split(name, ".")
	own := top.At(table)
	if n := own.At(names...); n != nil {
		return under(stream, append([]string{table}, names...)...), n
	}
	for _, t := range own.Children {
		if n := t.Child(name); n != nil && t.Has(toml.Flat) {
			return under(stream, table, t.Name, name), n
		}
	}
	if n := top.At("user", name); n != nil {
		return under(stream, "user", name), n
	}
	if n := top.At("input", name); n != nil {
		return under(stream, "input", name), n
	}
	if n := top.Child(name); n != nil {
		return under(stream, name), n
	}
	return under(stream, table), own
}

// clearOthers sets keys that belong to other methods of the same mechanism to zero, because defaults may have set them.
func (d *document) clearOthers(n *toml.Node, key toml.Key, v reflect.Value) {
	for _, t := range n.Children {
		if t.Of == "" || t.Of == toml.Field(v, "method").String() {
			continue
		}
		for _, c := range t.Children {
			if d.Written(under(key, t.Name, c.Name)) == nil {
				toml.Field(t.In(v), c.Name).SetZero()
			}
		}
	}
}

// checkValues checks that the mechanism publishes the values named in output.values.
func (d *document) checkValues(s *Stream, key toml.Key) {
	values := under(key, "output", "values")
	if !d.Sound(values) {
		return
	}
	checkTwice(d, values, s.Output.Values)
	_, e := s.mechanism()
	if e == nil {
		return
	}
	// The names of the values depend on these keys.
	for _, name := range []string{"workload", "covariance", "intervals", "solver", "intercept", "method", "release"} {
		if !d.Sound(under(key, s.Mechanism(), name)) {
			return
		}
	}
	if !d.Sound(under(key, "centre")) || !d.Sound(under(key, "scale")) {
		return
	}
	published := e.Values()
	for i, name := range s.Output.Values {
		if !slices.Contains(published, name) {
			d.Add(values, i, "must be a value that this stream publishes: "+toml.Alternatives(published), name)
		}
	}
}

// checkEvery checks that privacy_every exceeds 1 only if every step has a release and each release is one message.
// Releases without a privacy block can then refer to the block of step 1.
func (d *document) checkEvery(s *Stream, key toml.Key) {
	every := under(key, "output", "privacy_every")
	if name := s.Mechanism(); d.Sound(every) && s.Output.PrivacyEvery > 1 && (name == "sgd" || name == "adam") {
		d.Add(every, -1, "must be 1 for "+name+": a step may have no release, or a release in several messages",
			s.Output.PrivacyEvery)
	}
}

// checkTopics checks that each output topic is neither an input topic nor another stream's output, and that a topic of
// dead letters is neither an input nor an output.
func (d *document) checkTopics(c *Config) {
	type use struct {
		key   toml.Key
		topic string
		given bool
	}
	var inputs, outputs, letters []use
	writes := func(key toml.Key) {
		if s, ok := d.Written(key).(string); ok {
			if s, broken := d.Expand(key, -1, s); broken == "" && s != "" {
				outputs = append(outputs, use{key, s, true})
			}
		}
	}
	for _, s := range c.Streams {
		key := toml.Key{"stream", s.Name}
		if in := under(key, "input", "topic"); d.Sound(in) && !s.Dynamic() {
			inputs = append(inputs, use{in, s.Input.Topic, true})
		}
		switch out := under(key, "output", "topic"); {
		case s.Dynamic(): // see checkTemplates
		case d.Sound(out) && d.Sound(under(key, "input", "topics")) && strings.Contains(s.Output.Topic, anyTopic):
			d.Add(out, -1, "must be "+topic.Text, s.Output.Topic)
		case d.Sound(out) && d.Written(out) != nil:
			writes(out)
		case d.Sound(out) && d.Sound(under(key, "input", "topic")):
			if s.Output.Topic = s.Input.Topic + ".dp"; !isTopic(s.Output.Topic) {
				d.Add(out, -1, "required, because the default (input.topic followed by \".dp\") is too long for a "+
					"topic", nil)
			}
			outputs = append(outputs, use{out, s.Output.Topic, false})
		}
		switch dead := under(key, "dead_letter", "topic"); {
		case s.Dynamic() && strings.Contains(s.DeadLetter.Topic, anyTopic):
		case d.Sound(dead) && d.Sound(under(key, "input", "topics")) && strings.Contains(s.DeadLetter.Topic, anyTopic):
			d.Add(dead, -1, "must be "+topic.Text, s.DeadLetter.Topic)
		case s.DeadLetter.Topic != "":
			letters = append(letters, use{dead, s.DeadLetter.Topic, true})
		case s.DeadLetter.Mode != "off" && d.Sound(dead) && d.Sound(under(key, "dead_letter", "mode")):
			d.Add(dead, -1, "required, because mode is not \"off\"", nil)
		}
	}
	for _, l := range letters {
		for _, other := range append(inputs[:len(inputs):len(inputs)], outputs...) {
			if other.topic == l.topic {
				d.Note(l.key, -1, "must differ from the topic of "+other.key.String(), l.topic)
				break
			}
		}
	}
	for _, name := range []string{"control_topic", "boundary_topic"} {
		if own := (toml.Key{"kafka", name}); d.Sound(own) {
			writes(own)
		}
	}
	for i, out := range outputs {
		for _, in := range inputs {
			if in.topic == out.topic {
				d.Note(out.key, -1, "must not be an input topic, as "+in.key.String()+" is", out.topic)
				break
			}
		}
		for _, other := range outputs[:i] {
			if other.topic != out.topic {
				continue
			}
			if !out.given && !other.given {
				d.Note(out.key, -1,
					fmt.Sprintf(
						"required, because streams %s and %s read the same topic and would both publish to the same "+
							"default",
						other.key[1], out.key[1]), out.topic)
			} else {
				d.Note(out.key, -1, "must differ from the topic of "+other.key.String(), out.topic)
			}
			break
		}
	}
}

// checkLimits checks that streams with the same input topic have the same limit and adjacency. A limit belongs to the
// input, so an input can have only one.
func (d *document) checkLimits(c *Config) {
	first := map[string]*Stream{}
	for _, s := range d.byLine(c) {
		if !d.Sound(toml.Key{"stream", s.Name, "input", "topic"}) {
			continue
		}
		other := first[s.reads()]
		if other == nil {
			first[s.reads()] = s
			continue
		}
		// If name itself is not in the file, cause is the key that determines its value.
		agree := func(name, cause string, mine, theirs any) {
			for _, stream := range []string{s.Name, other.Name} {
				privacy := toml.Key{"stream", stream, "privacy"}
				if !d.Sound(under(privacy, name)) || !d.Sound(under(privacy, cause)) {
					return
				}
			}
			if mine != theirs {
				d.Note(toml.Key{"stream", s.Name, "privacy", name}, -1,
					fmt.Sprintf("must be the same as in [stream.%s], which reads the same topic: "+
						"%#v", other.Name, theirs),
					mine)
			}
		}
		mine, theirs := s.Privacy, other.Privacy
		agree("limit_epsilon", "epsilon", mine.LimitEpsilon, theirs.LimitEpsilon)
		agree("limit_delta", "delta", mine.LimitDelta, theirs.LimitDelta)
		agree("adjacency", "adjacency", mine.Adjacency.String(), theirs.Adjacency.String())
	}
}

// byLine returns the streams in the order of their lines in the file.
func (d *document) byLine(c *Config) []*Stream {
	streams := slices.Clone(c.Streams)
	slices.SortStableFunc(streams, func(a, b *Stream) int {
		return d.Line(toml.Key{"stream", a.Name}, -1) - d.Line(toml.Key{"stream", b.Name}, -1)
	})
	return streams
}
