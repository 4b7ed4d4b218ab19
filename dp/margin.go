package dp

// Margins against the rounding of float64. Each is far larger than the rounding that it covers,
// and far too small to notice.
// than what it covers, and far less than anybody notices.
const (
	// LedgerRoom times the budget is the μ that an estimator states as its Cost. A ledger
	// adds costs up and rounds the sum up; with this margin the sum is still within the
	// budget.
	LedgerRoom = 1 - 0x1p-49
	// RoundUp times a sensitivity or a standard deviation is at least the exact number, if
	// computing it took some hundred sums, products and roots, each off by at most 2⁻⁵³.
	RoundUp = 1 + 0x1p-40
	// MaxDraw bounds the size of every standard Gaussian that noise is made of.
	// Those of an Epoch are cut at 13.3; the rest is room for rounding.
	MaxDraw = 14
)

// The relative errors of so many operations of float64, each off by 2⁻⁵³. A logarithm or an
// exponential counts as several.
const (
	eightRoundings   = 8 * 0x1p-53
	sixteenRoundings = 16 * 0x1p-53
)
