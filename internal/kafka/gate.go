package kafka

import "context"

// gateWidth is the maximum number of concurrent requests to a broker, not counting fetches. Each request needs a
// connection. Without a limit, a thousand tasks that publish at the same tick would open a thousand connections.
const gateWidth = 16

// pass waits until a request to the leader of a partition may be sent. If topic is empty, any broker may answer the
// request. The caller must call leave afterwards. A broker that does not answer delays the requests to its own
// partitions, and requests that any broker may answer.
func (c *Client) pass(ctx context.Context, topic string, partition int32) (leave func(), err error) {
	leader := int32(-1)
	if topic != "" {
		if m, err := c.metadata(ctx, topic); err == nil {
			leader = leaderIn(m, topic, partition)
		}
	}
	c.mu.Lock()
	gate := c.gates[leader]
	if gate == nil {
		if c.gates == nil {
			c.gates = make(map[int32]chan struct{})
		}
		gate = make(chan struct{}, gateWidth)
		c.gates[leader] = gate
	}
	c.mu.Unlock()
	select {
	case gate <- struct{}{}:
		return func() { <-gate }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
