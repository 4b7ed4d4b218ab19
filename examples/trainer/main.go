// Trainer trains a model without showing its gradients to anybody except the daemon. It sends the gradients to a topic,
// and takes the parameters for the next step from the daemon's releases.
//
//	streamdp keygen /etc/streamdp/key
//	kafka-topics.sh --bootstrap-server localhost:9092 --create --topic gradients
//	streamdp run -c examples/trainer/trainer.toml
//	go run ./examples/trainer -brokers localhost:9092
//
// The model is a logistic regression on made-up examples. Each example is used in one step and never again, so the
// guarantee of the stream is a guarantee for the whole training.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	var o options
	brokers := flag.String("brokers", "localhost:9092", "brokers, separated by commas")
	flag.StringVar(&o.gradients, "gradients", "gradients", "topic to send gradients to")
	flag.StringVar(&o.parameters, "parameters", "parameters", "topic to take parameters from")
	flag.IntVar(&o.features, "features", 10, "features of an example; the daemon's adam.dim is one more")
	flag.IntVar(&o.batch, "batch", 64, "examples per step, as the daemon's step")
	flag.IntVar(&o.steps, "steps", 300, "steps of the training, as the daemon's horizon")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the examples")
	flag.Parse()
	o.brokers, o.report = strings.Split(*brokers, ","), log.Printf
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	accuracy, err := train(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("right for %.1f %% of new examples\n", 100*accuracy)
}

// options are the settings of a training.
type options struct {
	brokers               []string
	gradients, parameters string
	features              int
	batch, steps          int
	seed                  uint64
	report                func(format string, args ...any)
}

// train runs the training. It returns the share of new examples that the model classifies correctly.
func train(ctx context.Context, o options) (accuracy float64, err error) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(o.brokers...), Topic: o.gradients,
		RequiredAcks: kafka.RequireAll, BatchTimeout: 5 * time.Millisecond,
	}
	defer writer.Close()
	// The releases of a stream go to one partition: 0, unless output.partition sets another one.
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: o.brokers, Topic: o.parameters, Partition: 0, MaxWait: 100 * time.Millisecond, MaxBytes: 10 << 20,
	})
	defer reader.Close()

	examples := newExamples(o.features, o.seed)
	theta := make([]float64, o.features+1) // the initial parameters of the daemon
	var releases assembler
	for step := 0; step < o.steps; step++ {
		messages := make([]kafka.Message, o.batch)
		for i := range messages {
			x, y := examples.next()
			messages[i] = kafka.Message{
				Value:   pack(gradient(theta, x, y)),
				Headers: []kafka.Header{{Key: "model-step", Value: fmt.Append(nil, step)}},
			}
		}
		if err := writer.WriteMessages(ctx, messages...); err != nil {
			return 0, fmt.Errorf("cannot send gradients: %w", err)
		}
		if theta, err = follow(ctx, reader, &releases, uint64(step)+1); err != nil {
			return 0, err
		}
		if len(theta) != o.features+1 {
			return 0, fmt.Errorf("the daemon has %d parameters, but this model has %d: make adam.dim equal", len(theta),
				o.features+1)
		}
		if (step+1)%50 == 0 {
			o.report("step %d: loss of new examples %.4f", step+1, examples.loss(theta))
		}
	}
	right, total := 0, 5000
	for range total {
		x, y := examples.next()
		if (score(theta, x) > 0) == (y > 0) {
			right++
		}
	}
	return float64(right) / float64(total), nil
}

// follow waits for the release of a step and returns its parameters.
func follow(ctx context.Context, reader *kafka.Reader, releases *assembler, step uint64) ([]float64, error) {
	for {
		m, err := reader.ReadMessage(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot read the parameters of step %d: %w", step, err)
		}
		r, err := releases.add(m)
		if err != nil {
			return nil, err
		}
		if r != nil && r.Step == step {
			return r.parameters()
		}
	}
}

// gradient returns the gradient of −log P(y) for a logistic regression. The last parameter is the bias.
func gradient(theta, x []float64, y float64) []float64 {
	p := 1 / (1 + math.Exp(-score(theta, x)))
	g := make([]float64, len(theta))
	for i, v := range append(x, 1) {
		g[i] = (p - y) * v
	}
	return g
}

func score(theta, x []float64) float64 {
	s := theta[len(x)]
	for i, v := range x {
		s += theta[i] * v
	}
	return s
}

// pack returns x as packed little-endian float32.
func pack(x []float64) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	return b
}

// examples makes up examples. Features are in [−1, 1]. A hidden rule gives the classes, and a tenth of the classes is
// wrong.
type examples struct {
	source *rand.Rand
	rule   []float64
}

func newExamples(features int, seed uint64) *examples {
	e := &examples{source: rand.New(rand.NewPCG(seed, 0))}
	for range features + 1 {
		e.rule = append(e.rule, 2*e.source.Float64()-1)
	}
	return e
}

func (e *examples) next() (x []float64, y float64) {
	x = make([]float64, len(e.rule)-1)
	for i := range x {
		x[i] = 2*e.source.Float64() - 1
	}
	if (score(e.rule, x) > 0) != (e.source.Float64() < 0.1) {
		y = 1
	}
	return x, y
}

func (e *examples) loss(theta []float64) (loss float64) {
	const n = 2000
	for range n {
		x, y := e.next()
		s := score(theta, x)
		if y == 0 {
			s = -s
		}
		loss += math.Log1p(math.Exp(-s)) / n
	}
	return loss
}
