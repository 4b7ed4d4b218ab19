package sgd

// restart makes a hard restart: it forgets everything except the iterate and the noise.
func (e *Newton) restart() {
	e.restarts++
	e.unsettled = true
	e.forget()
}

// abandon makes a hard restart and resets the iterate to 0.
func (e *Newton) abandon() {
	clear(e.w)
	e.restart()
}

// forget returns to the phase of the first searches.
func (e *Newton) forget() {
	d := len(e.w)
	e.uncentre(e.w)
	e.phase = searchNorm
	e.run = run{
		centre: make([]float64, e.rows.columns-1),
		wander: newWander(d),
		blocks: blocks{dim: d},
		matrix: make([]float64, d*(d+1)/2),
	}
}
