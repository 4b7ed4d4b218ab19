package stream_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/streamdp/streamdp/internal/kafka/embedded"
	"github.com/streamdp/streamdp/internal/testing/fixtures"
	"github.com/streamdp/streamdp/internal/testing/kafkatest"
	"github.com/streamdp/streamdp/internal/testing/streamtest"
	"github.com/streamdp/streamdp/stream/cluster"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// slowListener accepts connections and delays each response. Any number of responses may be delayed at a time.
type slowListener struct {
	net.Listener
	late *atomic.Int64
}

func (l slowListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &slowConn{Conn: c, late: l.late, queue: make(chan slowWrite, 4096), gone: make(chan struct{})}
	go s.send()
	return s, nil
}

type slowConn struct {
	net.Conn
	late  *atomic.Int64
	queue chan slowWrite
	gone  chan struct{}
	once  sync.Once
}

type slowWrite struct {
	due  time.Time
	data []byte
}

func (c *slowConn) Write(data []byte) (int, error) {
	select {
	case c.queue <- slowWrite{time.Now().Add(time.Duration(c.late.Load())), append([]byte(nil), data...)}:
		return len(data), nil
	case <-c.gone:
		return 0, net.ErrClosed
	}
}

func (c *slowConn) Close() error {
	c.once.Do(func() { close(c.gone) })
	return c.Conn.Close()
}

func (c *slowConn) send() {
	for {
		select {
		case <-c.gone:
			return
		case w := <-c.queue:
			time.Sleep(time.Until(w.due))
			if _, err := c.Conn.Write(w.data); err != nil {
				return
			}
		}
	}
}

// BenchmarkTakeover kills the instance that owns a group's only shard, with a task that reads one partition. The other
// instance takes over from the last commit. The benchmark reports the time from the end of the session until the broker
// has the other instance's first release, in units of the delay of every response. That is the number of broker
// responses that must follow each other. The delay is 40 ms, so other work of the machine matters little. No epoch ends
// meanwhile.
func BenchmarkTakeover(b *testing.B) {
	const session, delay = 1500 * time.Millisecond, 40 * time.Millisecond
	var late atomic.Int64
	broker, err := embedded.Start(
		embedded.Options{
			Extra: []kfake.Opt{kfake.GroupMinSessionTimeout(100 * time.Millisecond),
				kfake.ListenFn(func(network, address string) (net.Listener, error) {
					l, err := net.Listen(network, address)
					return slowListener{l, &late}, err
				})}})
	fixtures.Must(b, err)
	b.Cleanup(broker.Close)
	fixtures.Must(b, broker.CreateTopic(b.Context(), "orders", 1, nil))
	r := streamtest.NewRigAt(b, broker, broker.Addr(),
		fixtures.With(fixtures.OrdersStream, "step   = 100", "step   = 10"))
	r.Commit = "200ms"
	r.Group = "[cluster]\ngroup = \"g\"\nshards = 1\nsession_timeout = \"" + session.String() +
		"\"\nallow_unreplicated = true\n"
	r.Begin()
	released := make(chan time.Time, 1)
	broker.Cluster().ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
		broker.Cluster().KeepControl()
		if t := q.(*kmsg.ProduceRequest).Topics; len(t) == 1 && t[0].Topic == "orders.dp" {
			select {
			case released <- time.Now():
			default:
			}
		}
		return nil, nil, false
	})
	ctx, stop := context.WithCancel(b.Context())
	feeder := kafkatest.NewProducer(b, []string{broker.Addr()}, "orders", 0, "")
	var feeding sync.WaitGroup
	defer feeding.Wait() // before the feeder is closed
	defer stop()
	feeding.Go(func() {
		for i := 0; ctx.Err() == nil; i += 10 {
			var batch []kafkatest.Record
			for j := range 10 {
				batch = append(batch, kafkatest.Record{Value: r.RecordOf(i + j)})
			}
			feeder.Send(batch...)
			time.Sleep(20 * time.Millisecond)
		}
	})
	var all [2]*streamtest.Process
	start := func(i int) {
		all[i] = streamtest.Spawn(b,
			streamtest.ChildSpec{Role: "daemon", Config: string(r.Instance(strconv.Itoa(i)).Text()), Seed: r.Seed})
	}
	next := func() time.Time {
		select {
		case <-released: // it may have waited here
		default:
		}
		select {
		case at := <-released:
			return at
		case <-time.After(fixtures.Patience):
			b.Fatalf("no release\n%s%s", all[0].Stderr, all[1].Stderr)
			return time.Time{}
		}
	}
	start(0)
	start(1)
	shared := r.Options().Config
	var answers []float64
	for b.Loop() {
		next()
		owner := -1
		for owner < 0 {
			g, err := cluster.Look(b.Context(), shared)
			if err != nil || len(g.Members) != 2 {
				time.Sleep(50 * time.Millisecond)
				continue
			}
			for _, m := range g.Members {
				if len(m.Shards) == 1 {
					owner, err = strconv.Atoi(m.Instance)
					fixtures.Must(b, err)
				}
			}
		}
		late.Store(int64(delay))
		time.Sleep(500 * time.Millisecond)
		next()
		killed := time.Now()
		all[owner].Kill()
		time.Sleep(delay) // for requests in flight
		took := next().Sub(killed) - session
		late.Store(0)
		answers = append(answers, took.Seconds()/delay.Seconds())
		b.Logf("%v after the session", took.Round(time.Millisecond))
		start(owner)
	}
	b.ReportMetric(fixtures.Median(answers), "answers/takeover")
	b.ReportMetric(0, "ns/op")
}
