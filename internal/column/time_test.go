package column

import (
	"cmp"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func column(t testing.TB, s Spec) *Column {
	t.Helper()
	if s.Name == "" {
		s.Name = "c"
	}
	c, err := New(s, Paths)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// reference computes what a column takes from a time, with the standard library's calendar.
func reference(take string, at time.Time) float64 {
	day := float64(at.Hour()*3600+at.Minute()*60+at.Second()) + float64(at.Nanosecond())/1e9
	weekday := (int(at.Weekday()) + 6) % 7
	days := 365.0
	if time.Date(at.Year(), 12, 31, 0, 0, 0, 0, time.UTC).YearDay() == 366 {
		days = 366
	}
	turn := func(f func(float64) float64, x float64) float64 { return f(2 * math.Pi * x) }
	switch take {
	case "seconds":
		return float64(at.Unix()) + float64(at.Nanosecond())/1e9
	case "minute":
		return float64(at.Minute())
	case "hour":
		return float64(at.Hour())
	case "weekday":
		return float64(weekday + 1)
	case "day-of-month":
		return float64(at.Day())
	case "day-of-year":
		return float64(at.YearDay())
	case "month":
		return float64(at.Month())
	case "year":
		return float64(at.Year())
	case "hour-sin":
		return turn(math.Sin, day/86400)
	case "hour-cos":
		return turn(math.Cos, day/86400)
	case "weekday-sin":
		return turn(math.Sin, (float64(weekday)+day/86400)/7)
	case "weekday-cos":
		return turn(math.Cos, (float64(weekday)+day/86400)/7)
	case "year-sin":
		return turn(math.Sin, (float64(at.YearDay()-1)+day/86400)/days)
	case "year-cos":
		return turn(math.Cos, (float64(at.YearDay()-1)+day/86400)/days)
	}
	panic(take)
}

func TestTaking(t *testing.T) {
	times := []int64{
		0, -1, 1, 951782399, 951782400, 951868799, 951868800, // the end of February 2000
		-2203977600, -2203891201, // 1900 had no leap day
		4107542400, 4107455999, // neither has 2100
		firstSecond, lastSecond, -86400, -86401, 1709164800, 1735689599,
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 500 {
		times = append(times, firstSecond+100000+r.Int64N(lastSecond-firstSecond-200000))
	}
	for _, take := range Taking() {
		for _, offset := range []string{"", "+01:00", "-05:30", "+14"} {
			c := column(t, Spec{Type: "timestamp", Take: take, UTCOffset: offset})
			seconds, _ := readOffset([]byte(offset))
			for i, sec := range times {
				nsec := int64(i%3) * 499_999_999
				at := time.Unix(sec, nsec).In(time.FixedZone("", int(seconds)))
				var got [1]float64
				f := c.Put(got[:], &Value{Kind: Instant, Sec: sec, Nsec: int32(nsec)})
				if at.Year() < 1 || at.Year() > 9999 {
					if f != NotTime {
						t.Errorf("%s of %v: fault %d", take, at, f)
					}
					continue
				}
				want := reference(take, at)
				if f != OK || got[0] != want && !(strings.Contains(take, "-") && math.Abs(got[0]-want) < 2e-15) {
					t.Fatalf("%s of %v: %v, fault %d, want %v", take, at, got[0], f, want)
				}
			}
		}
	}
}

var timeGrammar = regexp.MustCompile(
	`^(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d(?:[.,]\d+)?)?(?:([Zz])|([+-])(\d\d)(?::?([0-5]\d))?)?)?$`)

// referenceTime does what readTime does, with a regular expression and the standard library.
func referenceTime(s string) (sec, nsec, offset int64, given, ok bool) {
	m := timeGrammar.FindStringSubmatch(s)
	if m == nil || len(s) > maxTime {
		return
	}
	clock, seconds := cmp.Or(m[2], "00:00"), cmp.Or(strings.Replace(m[3], ",", ".", 1), ":00")
	at, err := time.Parse("2006-01-02T15:04:05", m[1]+"T"+clock+seconds[:min(len(seconds), 13)])
	hours, _ := strconv.Atoi(m[6])
	minutes, _ := strconv.Atoi(m[7])
	if offset = int64(hours*3600 + minutes*60); err != nil || at.Year() < 1 || offset > 18*3600 {
		return
	}
	if m[5] == "-" {
		offset = -offset
	}
	return at.Unix(), int64(at.Nanosecond()), offset, m[4]+m[5] != "", true
}

func FuzzTime(f *testing.F) {
	for _, s := range timeTexts {
		f.Add(s.in)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sec, nsec, offset, given, ok := readTime([]byte(s))
		wantSec, wantNsec, wantOffset, wantGiven, want := referenceTime(s)
		if ok != want || ok && (sec != wantSec || nsec != wantNsec || offset != wantOffset || given != wantGiven) {
			t.Fatalf("%q: %d, %d, %d, %v, %v, want %d, %d, %d, %v, %v", s, sec, nsec, offset, given, ok, wantSec,
				wantNsec, wantOffset, wantGiven, want)
		}
	})
}

var timeTexts = []struct {
	in   string
	want string // UTC time in RFC 3339 with nanoseconds; empty: the text is refused
}{
	{"1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"},
	{"2026-11-23T20:04:05.123456789Z", "2026-11-23T20:04:05.123456789Z"},
	{"2026-11-23t20:04:05z", "2026-11-23T20:04:05Z"}, {"2026-11-23 20:04:05.5+01:00", "2026-11-23T19:04:05.5Z"},
	{"2026-11-23T20:04:05,5-0530", "2026-11-24T01:34:05.5Z"},
	{"2026-11-23T20:04+02", "2026-11-23T18:04:00Z"}, {"2026-11-23T20:04Z", "2026-11-23T20:04:00Z"},
	{"2024-02-29", "2024-02-29T00:00:00Z"}, {"2000-02-29", "2000-02-29T00:00:00Z"},
	{"2026-11-23 20:04", "2026-11-23T20:04:00Z"}, {"1969-12-31T23:59:59.999999999Z", "1969-12-31T23:59:59.999999999Z"},
	{"0001-01-01", "0001-01-01T00:00:00Z"},
	{"2026-11-23T20:04:05.12345678999999999999Z", "2026-11-23T20:04:05.123456789Z"},
	{"9999-12-31T23:59:59.9Z", "9999-12-31T23:59:59.9Z"}, {"2026-11-23T20:04:05-00:00", "2026-11-23T20:04:05Z"},
	{"2023-02-29", ""}, {"1900-02-29", ""}, {"2100-02-29T00:00:00Z", ""}, {"2026-04-31", ""}, {"2026-13-01", ""},
	{"2026-00-01", ""}, {"2026-01-00", ""}, {"0000-01-01", ""},
	{"2026-11-23T24:00:00Z", ""}, {"2026-11-23T23:60:00Z", ""}, {"2026-11-23T23:59:60Z", ""}, {"2026-11-23T", ""},
	{"2026-11-23T20", ""}, {"2026-11-23T20:04:", ""}, {"2026-11-23T20:04:05.Z", ""},
	{"2026-11-23T20:04:05+19:00", ""}, {"2026-11-23T20:04:05+18:01", ""}, {"2026-11-23T20:04:05+01:60", ""},
	{"2026-11-23T20:04:05+1", ""}, {"2026-11-23T20:04+:00", ""}, {"2026-11-23T20:04:05+0100:", ""},
	{"2026-11-23T20:04:05+01:0", ""}, {"2026-11-23T20:04:05+01:000", ""},
	{"2026-11-23T20:04:05ZZ", ""}, {"2026-11-23X20:04:05Z", ""}, {"26-11-23", ""}, {"2026/11/23", ""}, {"", ""},
	{" 2026-11-23", ""}, {"2026-11-23 ", ""}, {"２026-11-23", ""}, {"12345", ""},
	{"0001-01-01T00:00:00+01:00", ""}, {"9999-12-31T23:59:59-01:00", ""},
	{"2026-11-23T20:04:05." + strings.Repeat("1", 44), "2026-11-23T20:04:05.111111111Z"},
	{"2026-11-23T20:04:05." + strings.Repeat("1", 45), ""},
}

func TestTimeTexts(t *testing.T) {
	c := column(t, Spec{Type: "timestamp"})
	for _, x := range timeTexts {
		v := Value{Kind: Text, Text: []byte(x.in)}
		var got [1]float64
		f := c.Put(got[:], &v)
		if x.want == "" {
			if f != NotTime {
				t.Errorf("%q: %v, fault %d, want no time", x.in, got[0], f)
			}
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, x.want)
		if err != nil {
			t.Fatal(err)
		}
		if want := reference("seconds", at); f != OK || got[0] != want {
			t.Errorf("%q: %v, fault %d, want %v", x.in, got[0], f, want)
		}
	}
	// A time without an offset is read as a time of the column's clock.
	hour := column(t, Spec{Type: "timestamp", Take: "hour", UTCOffset: "-03:00"})
	sec := column(t, Spec{Type: "timestamp", UTCOffset: "-03:00"})
	for text, want := range map[string][2]float64{
		"1970-01-01T10:00": {10, 13 * 3600}, "1970-01-01T10:00Z": {7, 36000}, "1970-01-01T10:00+05": {2, 5 * 3600},
	} {
		var got [2]float64
		if hour.Put(got[:1], &Value{Kind: Text, Text: []byte(text)}) != OK ||
			sec.Put(got[1:], &Value{Kind: Text, Text: []byte(text)}) != OK || got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

func TestNumericTimes(t *testing.T) {
	for _, x := range []struct {
		unit string
		in   float64
		want string // empty: the text is refused
	}{
		{"s", 0, "1970-01-01T00:00:00Z"}, {"s", -0.5, "1969-12-31T23:59:59.5Z"},
		{"s", 1795463631.25, "2026-11-23T19:53:51.25Z"}, {"ms", -1, "1969-12-31T23:59:59.999Z"},
		{"ms", 1795463631001, "2026-11-23T19:53:51.001Z"}, {"us", 1795463631000001, "2026-11-23T19:53:51.000001Z"},
		{"ns", 0x1p60, "2006-07-14T23:58:24.606846976Z"}, {"s", -1e-20, "1969-12-31T23:59:59.999999999Z"},
		{"ns", -1e-20, "1969-12-31T23:59:59.999999999Z"}, {"ns", 1.5, "1970-01-01T00:00:00.000000001Z"},
		{"s", math.Nextafter(1, 0), "1970-01-01T00:00:00.999999999Z"},
		{"ms", math.Nextafter(1, 0), "1970-01-01T00:00:00.000999999Z"},
		{"us", math.Nextafter(-1, 0), "1969-12-31T23:59:59.999999Z"},
		{"s", 1795463631000, ""}, {"s", math.NaN(), ""}, {"s", math.Inf(1), ""}, {"ns", 0x1p62, ""},
		{"ns", -0x1p63, ""}, {"s", -1e300, ""}, {"", 0, ""},
		{"s", lastSecond, "9999-12-31T23:59:59Z"}, {"s", lastSecond + 1, ""},
		{"s", firstSecond, "0001-01-01T00:00:00Z"}, {"s", firstSecond - 1, ""},
	} {
		c := column(t, Spec{Type: "timestamp", Unit: x.unit})
		got, ok := moment{}, false
		if c.Takes(Number) {
			got, ok = c.momentOf(&Value{Kind: Number, Num: x.in})
		}
		if ok != (x.want != "") {
			t.Errorf("%v %s: %v, %v", x.in, x.unit, got, ok)
			continue
		}
		if ok {
			if at := time.Unix(got.utc, got.nsec).UTC().Format(time.RFC3339Nano); at != x.want {
				t.Errorf("%v %s: %s, want %s", x.in, x.unit, at, x.want)
			}
		}
		if f := c.Put(make([]float64, 1), &Value{Kind: Number, Num: x.in}); (f == OK) != ok || !ok && f != NotTime {
			t.Errorf("%v %s: fault %d", x.in, x.unit, f)
		}
	}
}

func TestWeekdayCategories(t *testing.T) {
	c := column(t,
		Spec{Name: "day", Type: "timestamp", Take: "weekday", Categories: []string{"6", "7"}, Other: true,
			Baseline: "other"})
	if !slices.Equal(c.Names(), []string{"day=6", "day=7"}) {
		t.Errorf("names %q", c.Names())
	}
	for text, want := range map[string][2]float64{"2026-11-21": {1, 0}, "2026-11-22": {0, 1}, "2026-11-23": {}} {
		got := [2]float64{5, 5}
		if f := c.Put(got[:], &Value{Kind: Text, Text: []byte(text)}); f != OK || got != want {
			t.Errorf("%s: %v, fault %d, want %v", text, got, f, want)
		}
	}
}
