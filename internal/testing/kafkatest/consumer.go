package kafkatest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"time"

	kafkago "github.com/segmentio/kafka-go"
)

// consumed is the number of columns of the records that the consumers read: c0, c1, and so on.
const consumed = 16

// consumer returns a function for [Rivals] that does the daemon's work for moments without privacy. It reads records
// with kafka-go's Reader, decodes each into 16 columns, and sums the columns and their products.
func consumer(decode func(value []byte, row *[consumed]float64) error) func(ctx context.Context, addrs []string,
	topic string, n int) (int, time.Duration, error) {
	return func(ctx context.Context, addrs []string, topic string, n int) (int, time.Duration, error) {
		r := kafkago.NewReader(kafkago.ReaderConfig{Brokers: addrs, Topic: topic, MinBytes: 1, MaxBytes: 10 << 20})
		defer r.Close()
		var row, sums [consumed]float64
		var products [consumed][consumed]float64
		var begun time.Time
		count := 0
		for {
			m, err := r.ReadMessage(ctx)
			if err != nil {
				return 0, 0, err
			}
			if err := decode(m.Value, &row); err != nil {
				return 0, 0, fmt.Errorf("offset %d: %w", m.Offset, err)
			}
			for i, x := range row {
				sums[i] += x
				for j, y := range row[:i+1] {
					products[i][j] += x * y
				}
			}
			if begun.IsZero() {
				begun = time.Now()
			} else {
				count++
			}
			if m.Offset+1 >= int64(n) {
				break
			}
		}
		if !(products[0][0] > 0) || math.IsNaN(sums[0]) {
			return 0, 0, fmt.Errorf("the sum of squares of c0 is %g", products[0][0])
		}
		return count, time.Since(begun), nil
	}
}

// unpack decodes little-endian float64s.
func unpack(value []byte, row *[consumed]float64) error {
	if len(value) != 8*consumed {
		return fmt.Errorf("%d bytes, want %d", len(value), 8*consumed)
	}
	for i := range row {
		row[i] = math.Float64frombits(binary.LittleEndian.Uint64(value[8*i:]))
	}
	return nil
}

// fromJSON decodes an object with encoding/json into a struct, which is faster than a map.
func fromJSON(value []byte, row *[consumed]float64) error {
	var o struct {
		C0, C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13, C14, C15 float64
	}
	err := json.Unmarshal(value, &o)
	*row = [consumed]float64{o.C0, o.C1, o.C2, o.C3, o.C4, o.C5, o.C6, o.C7, o.C8, o.C9, o.C10, o.C11, o.C12, o.C13,
		o.C14, o.C15}
	return err
}
