package sgd

// Outlook is what is known, before any record, about the release after the given number of gradient steps.
type Outlook struct {
	Iteration uint64 `json:"iteration"`
	Slots     uint64 `json:"slots"`
	// Sampling and Privacy are the two parts of the average's expected excess risk ½E(⟨x, w̄⟩−⟨x, w*⟩)², divided by the
	// variance of the residuals. They hold for a well-scaled stream without drift whose curvature is configured, with
	// Gaussian features whose second moment is the identity, and with Gaussian residuals.
	Sampling float64 `json:"sampling"`
	Privacy  float64 `json:"privacy"`
}
