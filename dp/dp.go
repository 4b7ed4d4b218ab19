// Package dp holds what a differentially private release rests on: the
// adjacency relation, exact calibration of Gaussian noise, composition of
// costs, and noise that survives finite precision and a restart.
//
// # Noise
//
// Records become integers on a [Lattice]; sums of them are exact; the noise is
// an integer too, a Gaussian rounded exactly ([RoundRow]), so that what leaves
// is a post-processing of the real-valued Gaussian mechanism and its analysis
// holds without loss. No float is ever added to data.
//
// The Gaussians come from an [Epoch]: 64 bits of AES-256-CTR under a key that
// is derived from the epoch's secret and from the [Transcript] of the very
// integers they hide. The same step over the same integers has the same noise,
// on every machine and after every crash; one integer different, now or
// earlier, and the noise is independent from there on.
//
// # Accounting
//
// [Mu], [Sigma], [Epsilon] and [LogDelta] are the exact curve of the Gaussian
// mechanism, [JointDelta] and [JointEpsilon] that of Gaussians together with
// Gaussian sketches; a [Curve] bounds everything else by Rényi divergences. A
// [Cost] says what a mechanism spends, [Compose] adds costs, [Charged] finds the
// record that pays most, and ε and δ follow at the end, once. Everything rounds
// against itself: σ, ε and δ up, μ down. Adjacency is a typed value without a
// default.
//
// The mathematics is in docs/theory/dp.md and docs/theory/accounting.md.
package dp
