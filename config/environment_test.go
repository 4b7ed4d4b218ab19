package config

import (
	"strings"
	"testing"
)

func TestEnvironment(t *testing.T) {
	f := func(value, want string) {
		t.Helper()
		src := strings.Replace(orders, `"/var/lib/streamdp"`, value, 1)
		if got := parse(t, src).State.Dir; got != want {
			t.Errorf("%s: got %q, want %q", value, got, want)
		}
	}
	t.Setenv("A_1", "one")
	t.Setenv("LOOP", "${A_1}")
	t.Setenv("EMPTY", "")
	t.Setenv("QUOTE", "\" }\n")
	f(`"${A_1}"`, "one")
	f(`'${A_1}'`, "one")
	f(`"/x/${A_1}/${A_1}-y"`, "/x/one/one-y")
	f(`"x${EMPTY}"`, "x")
	f(`"${LOOP}"`, "${A_1}") // not expanded again
	f(`"$${A_1}"`, "${A_1}")
	f(`"$$${A_1}"`, "$${A_1}")
	f(`"$$A_1$"`, "$$A_1$")
	f(`"$A_1"`, "$A_1")
	f(`"$${A_1}${A_1}"`, "${A_1}one")
	for value, want := range map[string]string{
		`"${EMPTY}"`: "4: state.dir: must not be empty",
		`"${QUOTE}"`: "4: state.dir: must not contain control characters",
		`"${a-b}"`:   "4: state.dir: ${ must be followed by the name",
		`"${1}"`:     "4: state.dir: ${ must be followed by the name",
	} {
		if got := faults(t, strings.Replace(orders, `"/var/lib/streamdp"`, value, 1)); len(got) != 1 ||
			!strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %v", value, got)
		}
	}
	// Keys are not expanded.
	if got := faults(t, orders+"\"${A_1}\" = 1\n"); len(got) != 1 ||
		!strings.Contains(got[0], `"${A_1}": unknown key`) {
		t.Error(got)
	}
	t.Setenv("BAD", "\xff")
	if got := faults(t, strings.Replace(orders, `"/var/lib/streamdp"`, `"${BAD}"`, 1)); len(got) != 1 ||
		!strings.HasSuffix(got[0], "must be UTF-8") {
		t.Error(got)
	}
	// No message shows the value of a variable, wherever the rule is checked.
	t.Setenv("SECRET", "hunter2")
	got := strings.Join(
		faults(t,
			strings.NewReplacer(`"orders.dp"`, `"x", values = ["${SECRET}"]`, `"localhost:9092"`, `"${SECRET}"`,
				`"amount", "items"`, `"${SECRET}", "${SECRET}"`,
				`"earliest"`, `"${SECRET}"`, `"127.0.0.1:9464"`, `"${SECRET}"`, `"mean"`, `"${SECRET}"`, "[http]",
				"commit_interval = \"${SECRET}\"\nkey_group_readable = \"${SECRET}\"\n[http]", "step   = 100",
				"step = \"${SECRET}\"").Replace(orders)), "\n")
	if strings.Contains(got, "hunter") || strings.Count(got, "${SECRET}") != 8 {
		t.Error(got)
	}
}

// TestSecretsAreNotPrinted: a secret that was written instead of a file name is not shown.
func TestSecretsAreNotPrinted(t *testing.T) {
	const key = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"
	for _, edit := range [][2]string{
		{`"/etc/streamdp/key"`, `"` + key + `"`},
		{`"/etc/streamdp/key"`, `["` + key + `"]`},
		{`"/etc/streamdp/key"`, key},
		{`"/etc/streamdp/key"`, "0x" + key},
		{`"/etc/streamdp/key"`, "'''" + key},
		{`key_file`, "key = \"" + key + "\"\nkey_file"},
		{`key_file`, "master = { key = \"" + key + "\" }\nkey_file"},
		{`[state]`, "sasl.password = \"" + key + "\"\n[state]"},
		{`[http]`, "[http]\nbasic_auth = \"" + key + "\""},
		{`[state]`, "sasl = \"" + key + "\"\n[state]"},
		{`exposure = "operator"`, "tls = { key_file = \"" + key + "\" }"},
	} {
		got := faults(t, strings.Replace(orders, edit[0], edit[1], 1))
		if len(got) == 0 || strings.Contains(strings.Join(got, "\n"), "c0ffee") {
			t.Errorf("%s: %v", edit[1], got)
		}
	}
}
