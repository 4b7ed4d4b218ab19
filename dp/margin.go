package dp

// Margins against the rounding of float64. Each is far larger than the rounding that it covers, and far too small to
// notice.
const (
	// LedgerRoom is the factor from the budget to the μ that an estimator states as its Cost. A ledger adds costs and
	// rounds the sum up; with this margin the sum is still within the budget.
	LedgerRoom = 1 - 0x1p-49
	// RoundUp is a factor for a computed sensitivity or standard deviation. The product is at least the exact number,
	// if computing it took at most some hundred sums, products and roots, each off by at most 2⁻⁵³.
	RoundUp = 1 + 0x1p-40
	// MaxDraw bounds the absolute value of every standard Gaussian in the noise. Those of an Epoch are cut at 13.3; the
	// difference is room for rounding.
	MaxDraw = 14
)

// Relative errors of 8 and of 16 float64 operations, each off by 2⁻⁵³. A logarithm or an exponential counts as several.
const (
	eightRoundings   = 8 * 0x1p-53
	sixteenRoundings = 16 * 0x1p-53
)
