package dp

// These are margins for the rounding of float64. Each is far larger than the rounding that it covers, and far too small
// to matter for accuracy.
const (
	// An estimator multiplies its budget by LedgerRoom, and states the product as the μ of its Cost. A ledger adds
	// costs and rounds the sum up; with this margin the sum is still within the budget.
	LedgerRoom = 1 - 0x1p-49
	// RoundUp is a factor for a computed sensitivity or standard deviation. The product is at least the exact number,
	// if computing it took at most some hundred sums, products and roots, each off by at most 2⁻⁵³.
	RoundUp = 1 + 0x1p-40
	// MaxDraw bounds the absolute value of every standard Gaussian in the noise. An Epoch cuts them at 13.3; the
	// difference is room for rounding.
	MaxDraw = 14
)

// These are the relative errors of 8 and of 16 float64 operations, each with an error of 2⁻⁵³. A logarithm or an
// exponential counts as several operations.
const (
	eightRoundings   = 8 * 0x1p-53
	sixteenRoundings = 16 * 0x1p-53
)
