package adam

// Model describes the model whose gradients a stream of examples gives.
type Model struct {
	Loss    string `toml:"loss"`
	Target  string `toml:"target"`
	Classes int    `toml:"classes"`
	Hidden  int    `toml:"hidden"`
}

// Parameters returns the number of parameters for rows of the given length.
func (m *Model) Parameters(columns int) int { return 0 }

func (m *Model) validate(columns, target int) error { return nil }

func (m *Model) initial(columns int) []float64 { return nil }

type learner struct{}

func newLearner(m *Model, columns, target int) *learner { return &learner{} }

func (l *learner) gradient(theta, row []float64) []float64 { return nil }
