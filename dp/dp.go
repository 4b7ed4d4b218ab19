// Package dp contains the parts that every differentially private release relies on: the adjacency relation, exact
// calibration of Gaussian noise, composition of costs, and noise that keeps its guarantee in finite precision and after
// a restart.
//
// # Where to begin
//
// A program that runs one estimator needs these names:
//   - [Params] states the guarantee: ε and δ, or μ, and the [Adjacency].
//   - [NewRun], [NewKeyedRun] and [ResumeRun] return a [Run], which gives the noise of each step.
//   - The estimator's Close returns a [Release]; each of its arrays is a [Value]. After the last step Close returns
//     [ErrExhausted].
//   - [Cost] says what the estimator spends, [Compose] adds the costs of several estimators.
//   - [Mu], [Sigma] and [Epsilon] convert between ε, δ, μ and the standard deviation of Gaussian noise.
//
// A program that contains a mechanism of its own also needs these:
//   - [Lattice] turns records into integers.
//   - [Noise] gives the noise of one step, one [Row] for each array.
//   - [RoundRow] turns a Row into integer noise.
//
// # Words
//
// A record is the unit of protection. Each record has a slot, a position that is public. A step is a range of slots; at
// its end noise is drawn and, in most steps, something is released. An epoch is everything from an estimator's first
// step to its last, under one guarantee (ε, δ), which each of its records pays for once. The cost of a guarantee is
// counted in μ: how far one record can move the released values, in standard deviations of the noise.
//
// # Noise
//
// Records become integers on a [Lattice], so sums of them are exact. The noise is an integer too, an exactly rounded
// Gaussian ([RoundRow]). So a release is a post-processing of the real-valued Gaussian mechanism, and its analysis
// holds without loss. No float is added to data.
//
// A program takes the noise of an estimator's steps from a [Run]. Each Gaussian is made of 64 bits of AES-256-CTR. The
// AES key is derived from the run's keys and from the [Transcript], a hash of all integers that the noise has hidden so
// far. If a step is repeated with the same integers, it gets the same noise, on every machine and after every crash. If
// one integer differs, now or earlier, the noise is independent from there on. The daemon uses an [Epoch] instead of a
// Run, because it stores the keys elsewhere.
//
// # Accounting
//
// [Mu], [Sigma], [Epsilon] and [LogDelta] are the exact curve of the Gaussian mechanism. ε and δ are computed once,
// from the total cost: by the exact curve for Gaussians and Gaussian sketches, by Rényi divergences for everything
// else. All results are rounded to the safe side: σ, ε and δ up, μ down. Adjacency is a typed value without a default.
//   - [Charge] is a cost that a range of records pays. [Charged] finds the record that pays most, and returns its cost.
//     [MostCharged] returns all costs that could be the largest.
//   - [Parallel] returns the cost of a record that pays only one of several costs.
//   - [Curve] is a sum of Rényi divergences. Each [Term] of it is a mechanism of a certain [Kind].
//   - [ZCDP] converts the ρ of concentrated differential privacy, in which many papers state their results.
//
// # For the daemon
//
// The daemon of this module runs many estimators against one limit, and stores keys and checkpoints separately:
//   - [Epoch] derives the noise of an epoch from a master key and a secret. [NewSecret] makes such keys.
//   - [Transcript] is the hash of all integers that the noise has hidden. It belongs in the checkpoint.
//   - [NoiseFormat] is the version of the way from a key to the noise.
//   - [Reserve], [Cost.WithinReserve] and [ReservedMu] enforce a limit (ε, δ) on charges that are chosen after seeing
//     releases.
//   - [LedgerRoom] is a margin in each estimator's cost. With it, the rounded sum of costs stays within the limit.
//   - [LeastDelta] and [CheckDelta] say for which δ the noise, whose tails are cut, is good enough.
//   - [Cursor] draws a long row in pieces, [Part] sums a step in parts, and [Sizes] states how much memory an estimator
//     needs.
//
// The mathematics is in docs/theory/dp.md and docs/theory/accounting.md.
package dp
