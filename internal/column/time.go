package column

import "math"

// moment is a time on the clock of a column.
type moment struct {
	day     int64 // days since 1970-01-01
	nano    int64 // nanoseconds of the day
	utc     int64 // seconds since 1970-01-01T00:00Z
	nsec    int64 // nanoseconds after utc
	year    int64
	yearDay int64 // day of the year, from 0
	month   int64 // month of the year, from 1
	dayOf   int64 // day of the month, from 1
}

// Times must be in the years 1 to 9999. Other times are mistakes, for example milliseconds read as seconds.
const (
	firstSecond = -62135596800 // 0001-01-01T00:00:00Z
	lastSecond  = 253402300799 // 9999-12-31T23:59:59Z

	secondsOfDay = 86400
	second       = 1_000_000_000 // nanoseconds
)

// floorDiv returns ⌊a/b⌋ and the rest, for b > 0.
func floorDiv(a, b int64) (q, r int64) {
	q, r = a/b, a%b
	if r < 0 {
		q, r = q-1, r+b
	}
	return q, r
}

// at returns the time that is utc seconds and nsec nanoseconds after 1970-01-01T00:00Z, on a clock that is offset
// seconds ahead of UTC. It returns false if the year, in UTC or on that clock, is not in 1 to 9999.
func at(utc, nsec, offset int64) (t moment, ok bool) {
	if utc < firstSecond || utc > lastSecond || utc+offset < firstSecond || utc+offset > lastSecond {
		return t, false
	}
	day, rest := floorDiv(utc+offset, secondsOfDay)
	t = moment{day: day, nano: rest*second + nsec, utc: utc, nsec: nsec}
	t.date()
	return t, true
}

// date computes year, month and day. It uses years that begin in March, because then a leap day is the last day of its
// year. 400 years have 146097 days. The lengths of months repeat every five months, which have 153 days.
func (t *moment) date() {
	const in400, in100, in4, in1 = 146097, 36524, 1461, 365
	era, d := floorDiv(t.day+719468, in400) // days from 0000-03-01
	y := (d - d/(in4-1) + d/in100 - d/(in400-1)) / in1
	d -= in1*y + y/4 - y/100
	m := (5*d + 2) / 153 // month counted from March
	t.dayOf = d - (153*m+2)/5 + 1
	t.year = 400*era + y
	t.month = m + 3
	if m >= 10 {
		t.month, t.year = m-9, t.year+1
	}
	t.yearDay = t.day - dayOf(t.year, 1, 1)
}

// dayOf returns the number of days from 1970-01-01 to a date.
func dayOf(year, month, day int64) int64 {
	if month < 3 {
		year, month = year-1, month+12
	}
	era, y := floorDiv(year, 400)
	return era*146097 + y*365 + y/4 - y/100 + (153*(month-3)+2)/5 + day - 1 - 719468
}

func leap(year int64) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

func daysOfYear(year int64) int64 {
	if leap(year) {
		return 366
	}
	return 365
}

// weekday returns 0 for Monday to 6 for Sunday. 1970-01-01 was a Thursday.
func (t moment) weekday() int64 {
	_, d := floorDiv(t.day+3, 7)
	return d
}

// taking lists the values of [Spec.Take], in the order of the reference.
var taking = []struct {
	name  string
	whole bool // its values are whole numbers and may be categories
	of    func(t moment) float64
}{
	{"seconds", false, func(t moment) float64 { return float64(t.utc) + float64(t.nsec)/second }},
	{"minute", true, func(t moment) float64 { return float64(t.nano / (60 * second) % 60) }},
	{"hour", true, func(t moment) float64 { return float64(t.nano / (3600 * second)) }},
	{"weekday", true, func(t moment) float64 { return float64(t.weekday() + 1) }},
	{"day-of-month", true, func(t moment) float64 { return float64(t.dayOf) }},
	{"day-of-year", true, func(t moment) float64 { return float64(t.yearDay + 1) }},
	{"month", true, func(t moment) float64 { return float64(t.month) }},
	{"year", true, func(t moment) float64 { return float64(t.year) }},
	{"hour-sin", false, func(t moment) float64 { s, _ := t.ofDay(); return s }},
	{"hour-cos", false, func(t moment) float64 { _, c := t.ofDay(); return c }},
	{"weekday-sin", false, func(t moment) float64 { s, _ := t.ofWeek(); return s }},
	{"weekday-cos", false, func(t moment) float64 { _, c := t.ofWeek(); return c }},
	{"year-sin", false, func(t moment) float64 { s, _ := t.ofYear(); return s }},
	{"year-cos", false, func(t moment) float64 { _, c := t.ofYear(); return c }},
}

const dayNanos = secondsOfDay * second

func (t moment) ofDay() (sin, cos float64) { return circle(t.nano, dayNanos) }

func (t moment) ofWeek() (sin, cos float64) {
	return circle(t.weekday()*dayNanos+t.nano, 7*dayNanos)
}

func (t moment) ofYear() (sin, cos float64) {
	return circle(t.yearDay*dayNanos+t.nano, daysOfYear(t.year)*dayNanos)
}

// maxTime is the largest length of a text that is read as a time.
const maxTime = 64

// momentOf converts a value to a time on the column's clock.
func (c *Column) momentOf(v *Value) (t moment, ok bool) {
	switch v.Kind {
	case Instant:
		if v.Nsec < 0 || v.Nsec >= second {
			return t, false
		}
		return at(v.Sec, int64(v.Nsec), c.offset)
	case Number:
		// Split the number into whole units and a fraction. The bound makes the units fit into an int64.
		if !(math.Abs(v.Num) < 1<<62) {
			return t, false
		}
		floor := math.Floor(v.Num)
		sec, rest := floorDiv(int64(floor), c.perSecond)
		unit := second / c.perSecond
		// A fraction just below 1 could round up to a whole unit; min prevents that.
		return at(sec, rest*unit+min(unit-1, int64((v.Num-floor)*float64(unit))), c.offset)
	}
	sec, nsec, offset, given, ok := readTime(v.Text)
	if !ok {
		return t, false
	}
	if !given {
		offset = c.offset
	}
	return at(sec-offset, nsec, c.offset)
}

// readTime reads a date and a time of day, as RFC 3339 and ISO 8601 write them. sec is the number of seconds since
// 1970-01-01T00:00 on the clock of the text. If given is true, offset is the number of seconds by which that clock is
// ahead of UTC:
//
//	2026-11-23
//	2026-11-23T20:04
//	2026-11-23 20:04:05.123456789
//	2026-11-23T20:04:05Z
//	2026-11-23T20:04:05+01:00, +0100 or +01
//
// Date and time are separated by T, t or one space. A fraction of a second may have any number of digits, of which nine
// count. Second 60 is not accepted.
func readTime(b []byte) (sec, nsec, offset int64, given, ok bool) {
	if len(b) > maxTime {
		return
	}
	year, b, ok := digits(b, 4)
	month, b, ok := next(b, '-', ok)
	day, b, ok := next(b, '-', ok)
	if !ok || year < 1 || month < 1 || month > 12 || day < 1 || day > daysOfMonth(year, month) {
		return 0, 0, 0, false, false
	}
	sec = dayOf(year, month, day) * secondsOfDay
	if len(b) == 0 {
		return sec, 0, 0, false, true
	}
	if b[0]|0x20 != 't' && b[0] != ' ' {
		return 0, 0, 0, false, false
	}
	hour, b, ok := digits(b[1:], 2)
	minute, b, ok := next(b, ':', ok)
	if !ok || hour > 23 || minute > 59 {
		return 0, 0, 0, false, false
	}
	sec += hour*3600 + minute*60
	if len(b) > 0 && b[0] == ':' {
		var s int64
		if s, b, ok = digits(b[1:], 2); !ok || s > 59 {
			return 0, 0, 0, false, false
		}
		sec += s
		if len(b) > 0 && (b[0] == '.' || b[0] == ',') {
			b = b[1:]
			n := 0
			for unit := int64(second / 10); n < len(b) && '0' <= b[n] && b[n] <= '9'; unit /= 10 {
				nsec += int64(b[n]-'0') * unit
				n++
			}
			if n == 0 {
				return 0, 0, 0, false, false
			}
			b = b[n:]
		}
	}
	switch {
	case len(b) == 0:
		return sec, nsec, 0, false, true
	case len(b) == 1:
		return sec, nsec, 0, true, b[0]|0x20 == 'z'
	}
	offset, ok = readOffset(b)
	return sec, nsec, offset, true, ok
}

// readOffset reads an offset from UTC, such as "+01:00", "+0100" or "+01", and returns it in seconds. It is at most 18
// hours.
func readOffset(b []byte) (offset int64, ok bool) {
	if len(b) == 0 || b[0] != '+' && b[0] != '-' {
		return 0, false
	}
	hours, rest, ok := digits(b[1:], 2)
	var minutes int64
	if ok && len(rest) > 0 {
		if rest[0] == ':' {
			rest = rest[1:]
		}
		minutes, rest, ok = digits(rest, 2)
		ok = ok && len(rest) == 0
	}
	if offset = hours*3600 + minutes*60; b[0] == '-' {
		offset = -offset
	}
	return offset, ok && minutes < 60 && hours*60+minutes <= 18*60
}

// next reads a separator and two digits. It does nothing if ok is false.
func next(b []byte, separator byte, ok bool) (int64, []byte, bool) {
	if !ok || len(b) == 0 || b[0] != separator {
		return 0, b, false
	}
	return digits(b[1:], 2)
}

// digits reads exactly n digits at the beginning of b.
func digits(b []byte, n int) (x int64, rest []byte, ok bool) {
	if len(b) < n {
		return 0, b, false
	}
	for _, c := range b[:n] {
		if c < '0' || c > '9' {
			return 0, b, false
		}
		x = 10*x + int64(c-'0')
	}
	return x, b[n:], true
}

func daysOfMonth(year, month int64) int64 {
	switch month {
	case 2:
		return 28 + daysOfYear(year) - 365
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}
