package config

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestAutoRegression: bounds of a regression that are "auto" are NaN, and "auto" in the digest. With a horizon, the
// steps of the warm-up precede those of the regression, which is checked with numbers in place of "auto". Without
// "auto" the digest is unchanged.
func TestAutoRegression(t *testing.T) {
	const head = "[kafka]\nbrokers = [\"h:1\"]\n[state]\ndir = \"/s\"\nkey_file = \"/k\"\n[stream.s]\n" +
		"input = { topic = \"t\", columns = [\"a\", \"y\"] }\noutput.topic = \"o\"\nhorizon = 10\n%s\n" +
		"[stream.s.privacy]\nepsilon = 1\ndelta = 1e-6\nadjacency = \"zero-out\"\nlimit_epsilon = 3\n[stream.s.%s]\n" +
		"target = \"y\"\n%s\n"
	for _, x := range []struct {
		name, stream, table, keys string
		steps                     uint64
		digest                    []string
	}{
		{"sgd", "centre = \"auto\"\nscale = [\"auto\", 3]\nwarmup = 7000", "sgd", `clip_x = "auto"`, 11,
			[]string{`"centre":["auto","auto"]`, `"scale":["auto",3]`, `"clip_x":"auto"`, `"warmup":7000`}},
		{"amb", "centre = \"auto\"\nscale = \"auto\"", "sgd",
			"method = \"amb\"\nradius = 3.0\nclip_x = \"auto\"\nclip_y = \"auto\"", 11, []string{`"clip_y":"auto"`}},
		{"refit", "warmup_mode = \"split\"\ncentre = 1\nscale = 2", "refit",
			"clip_x = \"auto\"\nclip_y = 2.0\nwindow = 100", 11,
			[]string{`"clip_x":"auto"`, `"clip_y":2`, `"warmup_mode":"split"`}},
		{"all stages", "centre = \"auto\"\nscale = \"auto\"\nwarmup_mode = \"split\"", "refit",
			"clip_x = 1\nclip_y = \"auto\"\nwindow = 100", 15, []string{`"clip_y":"auto"`}},
		{"nothing is known", "", "sgd", "", 11,
			[]string{`"centre":["auto","auto"]`, `"scale":["auto","auto"]`, `"clip_x":"auto"`}},
		{"no bounds of a refit", "", "refit", "window = 100", 11,
			[]string{`"centre":["auto","auto"]`, `"clip_x":"auto"`, `"clip_y":"auto"`}},
		{"adam", "centre = [\"auto\", 0]\nscale = [\"auto\", 1]\nstep = 20", "adam",
			"clip = 1\nrate = 0.1\nmode = \"model\"\nmodel = { loss = \"logistic\", target = \"y\" }", 11,
			[]string{`"centre":["auto",0]`}},
		{"no warm-up", "", "sgd", "clip_x = 1", 10, nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			text0 := fmt.Sprintf(head, x.stream, x.table, x.keys)
			if x.table == "adam" {
				text0 = strings.Replace(text0, "[stream.s.adam]\ntarget = \"y\"\n", "[stream.s.adam]\n", 1)
			}
			s := parse(t, text0).Streams[0]
			if s.LastStep() != x.steps || s.Automatic() != (x.digest != nil) {
				t.Errorf("%d steps, automatic %v", s.LastStep(), s.Automatic())
			}
			text := string(s.Canonical(0))
			for _, want := range x.digest {
				if !strings.Contains(text, want) {
					t.Errorf("%s is not in %s", want, text)
				}
			}
			if x.digest == nil && (strings.Contains(text, "auto") || strings.Contains(text, "warmup")) {
				t.Errorf("without a warm-up the digest has %s", text)
			}
			if _, err := StreamOf("s", []byte(text)); err != nil {
				t.Error(err)
			}
			if !s.Automatic() {
				return
			}
			cx, cy := s.Limits()
			b := s.Bounds()
			if b.Regression.Target != 1 || b.Regression.X != math.IsNaN(cx) || b.Regression.Y != math.IsNaN(cy) ||
				b.Clip || b.Records != s.Warmup {
				t.Errorf("bounds %+v", b)
			}
			u := s.Standing()
			if u.Automatic() || u.LastStep() != 10 || !s.Automatic() {
				t.Errorf("in its place stands %+v", u)
			}
		})
	}
	for _, x := range []struct{ stream, table, keys, want string }{
		{"warmup = 100", "sgd", "clip_x = 1", `warmup: is only for a centre, scale, clip_x or clip_y that is "auto"`},
		{"warmup_mode = \"split\"", "refit", "clip_x = 1\nclip_y = 1\nwindow = 9",
			`warmup_mode: is only for a centre, scale, clip_x or clip_y that is "auto"`},
		{"", "sgd", "method = \"amb\"\nradius = 3.0\nclip_x = \"auto\"\namb.curvature = 0.5",
			"sgd.amb.curvature: must be absent: its unit depends"},
		{"", "refit", "solver = \"dp-gd-residual\"\nclip_x = 1\nclip_y = \"auto\"\nwindow = 9\nresidual_clip = 0.5",
			"refit.residual_clip: must be absent: its unit depends"},
		{"", "sgd", `clip_x = "automatic"`, `sgd.clip_x: must be a number, or "auto"`},
		{"", "sgd", `clip_x = -1`, `sgd.clip_x: must be positive`},
		{"", "sgd", "clip_x = \"auto\"\nradius = \"auto\"", "sgd.radius: must be a number"},
		{"", "sgd", "clip_x = \"auto\"\nlevel = 2.0", "sgd.level: must be in (0, 1)"},
		{"centre = \"auto\"\nstep = 10", "adam",
			"clip = 1\nrate = 0.1\nmode = \"model\"\nmodel = { loss = \"logistic\", target = \"y\" }",
			"adam.model.target: must be absent: its unit depends"},
		{"scale = \"auto\"\nstep = 10", "adam",
			"clip = 1\nrate = 0.1\nmode = \"model\"\ninitial_file = \"/p\"\n" +
				"model = { loss = \"linear\", target = \"y\" }", "adam.initial_file: must be absent: its unit depends"},
		{"step = 10\nwarmup = 10", "adam",
			"clip = 1\nrate = 0.1\nmode = \"model\"\nmodel = { loss = \"linear\", target = \"y\" }",
			"warmup: is only for a centre, scale, clip_x or clip_y that is \"auto\""},
		{"centre = \"auto\"\nstep = 10", "adam", "clip = 1\nrate = 0.1\ndim = 4",
			"centre: must be absent for gradients, which are not scaled"},
	} {
		text := fmt.Sprintf(head, x.stream, x.table, x.keys)
		if x.table == "adam" {
			text = strings.Replace(text, "[stream.s.adam]\ntarget = \"y\"\n", "[stream.s.adam]\n", 1)
		}
		if _, err := Parse("s.toml", []byte(text)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s %s %s:\n%v\nwant %s", x.stream, x.table, x.keys, err, x.want)
		}
	}
}
