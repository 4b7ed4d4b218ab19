// Package dp contains the parts that every differentially private release relies on: the adjacency relation, exact
// calibration of Gaussian noise, composition of costs, and noise that keeps its guarantee in finite precision and after
// a restart.
//
// # Words
//
// A record is the unit of protection. Each record has a slot, a position that is public. A step is a range of slots; at
// its end noise is drawn and, in most steps, something is released. An epoch is everything from an estimator's first
// step to its last, under one guarantee (ε, δ), which each of its records pays for once. The cost of a guarantee is
// counted in μ: the most that one record can change the released values, in standard deviations of the noise.
//
// # Noise
//
// Records become integers on a [Lattice], so sums of them are exact. The noise is an integer too, an exactly rounded
// Gaussian ([RoundRow]). So a release is a post-processing of the real-valued Gaussian mechanism, and its analysis
// holds without loss. No float is added to data.
//
// A program takes the noise of an estimator's steps from a [Run]. Each Gaussian is made of 64 bits of AES-256-CTR. The
// AES key is derived from the run's keys and from the [Transcript], a hash of all integers that the noise has hidden so
// far. The same step over the same integers has the same noise, on every machine and after every crash. If one integer
// differs, now or earlier, the noise is independent from there on. The daemon uses an [Epoch] instead of a Run, because
// it stores the keys elsewhere.
//
// # Accounting
//
// [Mu], [Sigma], [Epsilon] and [LogDelta] are the exact curve of the Gaussian mechanism. A [Cost] says what a mechanism
// spends, [Compose] adds costs, and [Charged] finds the record that pays most. ε and δ are computed once, from the
// total: by the exact curve for Gaussians and Gaussian sketches, by Rényi divergences (a [Curve]) for everything else.
// All results are rounded to the safe side: σ, ε and δ up, μ down. Adjacency is a typed value without a default.
//
// The mathematics is in docs/theory/dp.md and docs/theory/accounting.md.
package dp
