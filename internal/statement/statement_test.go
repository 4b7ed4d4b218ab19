package statement

import (
	"strings"
	"testing"

	"github.com/streamdp/streamdp/config"
	"github.com/streamdp/streamdp/stream/core"
)

// TestReportOfPersons: if persons are protected, the report mentions persons and no charged records; otherwise it
// mentions charged records and no persons.
func TestReportOfPersons(t *testing.T) {
	t.Parallel()
	two := 2.708
	about := &core.Description{Stream: "orders", Epsilon: 1, Delta: 1e-8, LimitEpsilon: 3, LimitDelta: 1e-8,
		Persons: []core.Person{{Records: 2, Epsilon: &two}}}
	for _, user := range []*config.User{nil, {Key: "header:customer", Population: "shop"}} {
		var page strings.Builder
		r := Statement{Streams: []Stream{{Description: about, User: user, Unit: core.Unit(&config.Stream{User: user})}}}
		if err := r.HTML(&page); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"A person is charged at most <b>ε = 3</b>", "population " +
			"<code>shop</code>", "all records with one user key (<code>header:customer</code>)", "with and without " +
			"any one person."} {
			if strings.Contains(page.String(), text) != (user != nil) {
				t.Errorf("user %+v: %q in\n%s", user, text, page.String())
			}
		}
		for _, text := range []string{"A record is charged at most", "A person with several records is protected " +
			"less", "with and without any one record."} {
			if strings.Contains(page.String(), text) != (user == nil) {
				t.Errorf("user %+v: %q in\n%s", user, text, page.String())
			}
		}
		if !strings.Contains(page.String(), "at most 2.708") {
			t.Error("the table is empty")
		}
	}
}
