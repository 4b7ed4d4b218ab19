package group

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/streamdp/streamdp/internal/kafka"
	"github.com/streamdp/streamdp/internal/kafka/embedded"
)

// These session timeouts are long enough that a session does not end if the machine stalls for a second or two. A
// request may take a third of the timeout, so with the long one such a stall does not repeat a request either.
const (
	shortSession = 3 * time.Second
	longSession  = 12 * time.Second
)

// broker starts a broker that has the group's topic of states and accepts short sessions.
func broker(t *testing.T, shards int) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(embedded.Options{Extra: []kfake.Opt{kfake.GroupMinSessionTimeout(100 * time.Millisecond)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.CreateTopic(t.Context(), "g.state", shards, nil); err != nil {
		t.Fatal(err)
	}
	return b
}

func options(addrs []string, shards int, session time.Duration, instance string) Options {
	return Options{
		Kafka: kafka.Options{Brokers: addrs}, Group: "g", Shards: shards, Session: session,
		Instance: instance, Address: "http://" + instance, Build: "test", Key: "k", Digest: "d",
		Reads: []int{1}, Writes: []int{1},
	}
}

// instance is a member and the last generation that it received.
type instance struct {
	*Member
	t    *testing.T
	name string
	last Generation
}

func join(t *testing.T, o Options) *instance {
	t.Helper()
	m, err := Join(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.cancel(); m.Close(context.Background()) })
	return &instance{Member: m, t: t, name: o.Instance}
}

// settled waits until all members have received the same generation, one that satisfies a condition, and checks that it
// gives each shard to one of them.
func settled(t *testing.T, shards int, until func(Generation) bool, all ...*instance) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		same := true
		for _, i := range all {
			same = same && i.last.Number == all[0].last.Number && len(i.last.Members) == len(all) && until(i.last)
		}
		if same {
			break
		}
		for _, i := range all {
			select {
			case g, ok := <-i.Generations():
				if !ok {
					t.Fatalf("%s receives no further generation", i.name)
				}
				if g.Number <= i.last.Number {
					t.Fatalf("%s: generation %d after %d", i.name, g.Number, i.last.Number)
				}
				i.last = g
			case <-time.After(5 * time.Millisecond):
			case <-limit:
				for _, i := range all {
					t.Logf("%s: %+v", i.name, i.last)
				}
				t.Fatal("no such generation")
			}
		}
	}
	owners := make([]string, shards)
	for _, i := range all {
		me := i.last.Members[i.last.Self]
		if me.Instance != i.name || me.Address != "http://"+i.name || !slices.Equal(me.Shards, i.last.Shards) {
			t.Fatalf("%s is %+v in %+v", i.name, me, i.last)
		}
		if fmt.Sprint(i.last.Members) != fmt.Sprint(all[0].last.Members) {
			t.Fatalf("%s sees %v, %s %v", i.name, i.last.Members, all[0].name, all[0].last.Members)
		}
		for _, s := range i.last.Shards {
			if owners[s] != "" {
				t.Fatalf("shard %d is given to %s and %s", s, owners[s], i.name)
			}
			owners[s] = i.name
		}
	}
	if s := slices.Index(owners, ""); s >= 0 {
		t.Fatalf("shard %d has no owner", s)
	}
}

func whatever(Generation) bool { return true }

func (i *instance) confirms(shard int, want error) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), 10*time.Second)
	defer cancel()
	if err := i.Confirm(ctx, shard); !errors.Is(err, want) {
		i.t.Errorf("%s confirms shard %d: %v, want %v", i.name, shard, err, want)
	}
}

// Three members share the shards; one dies without leaving the group, one leaves.
func TestMembers(t *testing.T) {
	t.Parallel()
	members(t, broker(t, 7).Addrs(), 4*time.Second)
}

func members(t *testing.T, addrs []string, session time.Duration) *instance {
	const shards = 7
	a := join(t, options(addrs, shards, session, "a"))
	settled(t, shards, whatever, a)
	first := a.last.Shards
	c := join(t, options(addrs, shards, session, "c"))
	b := join(t, options(addrs, shards, session, "b"))
	settled(t, shards, whatever, a, b, c)
	if len(a.last.Shards) != 3 || a.last.Format != 1 || a.last.Active() != 3 || a.last.Self != 0 || c.last.Self != 2 {
		t.Errorf("%+v", a.last)
	}
	for _, s := range a.last.Shards {
		if !slices.Contains(first, s) {
			t.Errorf("shard %d came to a, which had too many", s)
		}
		a.confirms(s, nil)
		b.confirms(s, ErrMoved)
	}
	a.confirms(shards, ErrMoved)

	// b dies: its connections break without a LeaveGroup. The others keep their shards.
	before := [][]int{a.last.Shards, c.last.Shards}
	begin := time.Now()
	b.cancel()
	settled(t, shards, whatever, a, c)
	if took := time.Since(begin); took < session/2 || took > 3*session {
		t.Errorf("after %v of silence, with a session of %v", took, session)
	}
	for i, m := range []*instance{a, c} {
		for _, s := range before[i] {
			if !slices.Contains(m.last.Shards, s) {
				t.Errorf("%s lost shard %d, which no other member got", m.name, s)
			}
			m.confirms(s, nil)
		}
	}

	// A shard is confirmed only in the generation that gave it.
	old := *c.now
	b = join(t, options(addrs, shards, session, "b"))
	settled(t, shards, whatever, a, b, c)
	if err := c.commit(t.Context(), &old, old.Shards[0]); !errors.Is(err, kerr.IllegalGeneration) {
		t.Errorf("an old generation commits: %v", err)
	}
	old = *c.now
	begin = time.Now()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	settled(t, shards, whatever, a, b)
	if took := time.Since(begin); took > session*3/4 {
		t.Errorf("the others took over %v after a member left, with a session of %v", took, session)
	}
	if err := a.commit(t.Context(), &old, 0); !errors.Is(err, kerr.UnknownMemberID) {
		t.Errorf("a member that left commits: %v", err)
	}
	c.confirms(0, ErrMoved)
	if _, ok := <-c.Generations(); ok {
		t.Error("a member that left received a generation")
	}
	return a
}

// No shard moves if nothing happens, although each generation changes the members' profiles.
func TestMembersAtRest(t *testing.T) {
	t.Parallel()
	addrs := broker(t, 5).Addrs()
	a, b := join(t, options(addrs, 5, shortSession, "a")), join(t, options(addrs, 5, shortSession, "b"))
	settled(t, 5, whatever, a, b)
	select {
	case g := <-a.Generations():
		t.Errorf("a rebalance without a reason: %+v", g)
	case <-time.After(2 * shortSession):
	}
}

// A newer configuration takes over when most members have it; until then the members with it are on standby.
func TestMembersOfTwoClasses(t *testing.T) {
	t.Parallel()
	addrs := broker(t, 4).Addrs()
	changed := func(name string) *instance {
		o := options(addrs, 4, shortSession, name)
		o.Digest = "e"
		return join(t, o)
	}
	a, b := join(t, options(addrs, 4, shortSession, "a")), join(t, options(addrs, 4, shortSession, "b"))
	settled(t, 4, whatever, a, b)
	c := changed("c")
	settled(t, 4,
		func(g Generation) bool { return g.Active() == 2 && g.Members[2].Standby == StandbyConfiguration }, a, b, c)
	if c.last.Standby != StandbyConfiguration || len(c.last.Shards) != 0 || a.last.Standby != "" {
		t.Errorf("%+v", c.last)
	}
	c.confirms(0, ErrMoved)
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	settled(t, 4, func(g Generation) bool { return g.Members[0].Instance == "b" && g.Active() == 1 }, b, c)
	a = changed("a")
	settled(t, 4, func(g Generation) bool { return g.Active() == 2 && g.Members[2].Instance == "b" }, a, b, c)
	b.confirms(0, ErrMoved)
	c.confirms(c.last.Shards[0], nil)
}

// answers lets a test answer requests of one kind instead of the broker.
func answers(b *embedded.Broker, key int16, answer func(kmsg.Request) (kmsg.Response, error, bool)) (stop func()) {
	var mu sync.Mutex
	stopped := false
	b.Cluster().ControlKey(key, func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return nil, nil, false
		}
		return answer(req)
	})
	return func() { mu.Lock(); stopped = true; mu.Unlock() }
}

// If the group's coordinator does not answer for longer than a session, no member learns of a change, so all members
// keep their shards until the coordinator answers again.
func TestMembersWithoutCoordinator(t *testing.T) {
	t.Parallel()
	b := broker(t, 4)
	var mu sync.Mutex
	var troubles []error
	const session = 2 * time.Second
	o := options(b.Addrs(), 4, session, "a")
	o.Trouble = func(err error) { mu.Lock(); troubles = append(troubles, err); mu.Unlock() }
	a, c := join(t, o), join(t, options(b.Addrs(), 4, session, "c"))
	settled(t, 4, whatever, a, c)
	before := a.last
	var stops []func()
	for key := range map[int16]kmsg.Request{12: nil, 11: nil, 8: nil, 14: nil} {
		stops = append(stops, answers(b, key, func(req kmsg.Request) (kmsg.Response, error, bool) {
			return nil, errors.New("away"), true // the broker closes the connection
		}))
	}
	time.Sleep(session * 3 / 2)
	done := make(chan error, 1)
	go func() { done <- a.Confirm(t.Context(), before.Shards[0]) }()
	select {
	case g := <-a.Generations():
		t.Errorf("without a coordinator: %+v", g)
	case err := <-done:
		t.Errorf("confirmed without a member: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	for _, stop := range stops {
		stop()
	}
	// the first member that reaches the coordinator again gets all shards
	if err := <-done; err != nil && !errors.Is(err, ErrMoved) {
		t.Errorf("after the coordinator is back: %v", err)
	}
	settled(t, 4, func(g Generation) bool { return g.Number > before.Number }, a, c)
	// The member that polls reports it some time later.
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		all := slices.Clone(troubles)
		mu.Unlock()
		if slices.ContainsFunc(all, func(err error) bool { return strings.HasPrefix(err.Error(), "group g: ") }) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("no member reported the error: %v", all)
		}
	}
}

// A shard is confirmed in a generation that the coordinator knows, or not at all.
func TestConfirmAnswers(t *testing.T) {
	t.Parallel()
	b := broker(t, 1)
	a := join(t, options(b.Addrs(), 1, longSession, "b"))
	settled(t, 1, whatever, a)
	var codes []int16
	var mu sync.Mutex
	asked := 0
	stop := answers(b, 8, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.OffsetCommitRequest)
		mu.Lock()
		defer mu.Unlock()
		asked++
		if len(codes) == 0 {
			return nil, nil, false
		}
		res := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			p := kmsg.NewOffsetCommitResponseTopicPartition()
			p.ErrorCode = codes[0]
			rt.Partitions = append(rt.Partitions, p)
			res.Topics = append(res.Topics, rt)
		}
		codes = codes[1:]
		return res, nil, true
	})
	defer stop()
	set := func(c ...int16) { mu.Lock(); codes, asked = c, 0; mu.Unlock() }
	times := func() int { mu.Lock(); defer mu.Unlock(); return asked }
	for _, transient := range []int16{14, 15, 16, 7} {
		set(transient)
		if a.confirms(0, nil); times() < 2 {
			t.Errorf("code %d is an answer", transient)
		}
	}
	for _, final := range []*kerr.Error{
		kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.UnknownTopicID,
		kerr.UnknownTopicOrPartition,
	} {
		set(final.Code)
		if a.confirms(0, final); times() != 1 {
			t.Errorf("code %d was asked for %d times", final.Code, times())
		}
	}
	// The coordinator refuses the confirmation in this generation, so a later generation must say who owns the shard.
	done := make(chan error, 1)
	for _, refused := range []int16{22, 25, 27} {
		set(refused)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- a.Confirm(ctx, 0) }()
		for times() == 0 && len(done) == 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // leaves time to ask again
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || times() != 1 {
			t.Errorf("code %d: %v, asked %d times", refused, err, times())
		}
	}
	// In the first case the later generation gives the shard to the member, in the second it does not.
	set(22)
	go func() { done <- a.Confirm(t.Context(), 0) }()
	c := join(t, options(b.Addrs(), 1, longSession, "c"))
	if err := <-done; err != nil {
		t.Errorf("in the next generation: %v", err)
	}
	settled(t, 1, whatever, a, c)
	set(27)
	go func() { done <- a.Confirm(t.Context(), 0) }()
	for _, name := range []string{"d", "e", "f"} {
		o := options(b.Addrs(), 1, longSession, name)
		o.Digest = "other"
		join(t, o)
	}
	if err := <-done; !errors.Is(err, ErrMoved) {
		// The member may have asked again in a generation before most members had another digest.
		if err != nil {
			t.Errorf("when others own it: %v", err)
		}
		for !errors.Is(err, ErrMoved) {
			err = a.Confirm(t.Context(), 0)
		}
	}
}

// A late receiver gets only the newest generation.
func TestGenerationsNewest(t *testing.T) {
	t.Parallel()
	addrs := broker(t, 3).Addrs()
	a := join(t, options(addrs, 3, shortSession, "a"))
	b := join(t, options(addrs, 3, shortSession, "b"))
	c := join(t, options(addrs, 3, shortSession, "c"))
	settled(t, 3, whatever, b, c, &instance{Member: a.Member, t: t, name: "a"})
	d := join(t, options(addrs, 3, shortSession, "d"))
	e := &instance{Member: a.Member, t: t, name: "a"} // has received none of the later generations
	settled(t, 3, whatever, b, c, d, e)
}

// A member that cannot join reports the reason at once.
func TestJoinRefuses(t *testing.T) {
	t.Parallel()
	addrs := broker(t, 3).Addrs()
	for want, change := range map[string]func(*Options){
		"topic h.state does not exist: create it with streamdp cluster init": func(o *Options) {
			o.Group = "h"
		},
		"topic g.state has 3 partitions, but the configuration has 4 shards": func(o *Options) {
			o.Shards = 4
		},
		"a group needs a name and 1 to 4096 shards": func(o *Options) {
			o.Shards = 4097
		},
		"no broker addresses are configured": func(o *Options) {
			o.Kafka.Brokers = nil
		},
		"the digest is longer than 255 bytes": func(o *Options) {
			o.Digest = strings.Repeat("d", 256)
		},
		`sasl mechanism "x" is not plain, scram-sha-256, scram-sha-512, oauthbearer`: func(o *Options) {
			o.Kafka.SASL.Mechanism = "x"
		},
	} {
		o := options(addrs, 3, shortSession, "a")
		change(&o)
		if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// A broker that cannot be reached may come back, so joining is retried.
	o := options([]string{"127.0.0.1:1"}, 3, 300*time.Millisecond, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	troubles := 0
	o.Trouble = func(error) {
		if troubles++; troubles == 2 {
			cancel()
		}
	}
	if _, err := Join(ctx, o); err == nil || !errors.Is(ctx.Err(), context.Canceled) || troubles != 2 {
		t.Errorf("%v before the context's end, and %d words", err, troubles)
	}
}

// The client's errors about the topic, which the member does not read, are not errors of the group: they would remain
// until the next rebalance.
func TestMembersTopicError(t *testing.T) {
	t.Parallel()
	b := broker(t, 2)
	var mu sync.Mutex
	var troubles []error
	o := options(b.Addrs(), 2, shortSession, "a")
	o.Trouble = func(err error) { mu.Lock(); troubles = append(troubles, err); mu.Unlock() }
	a := join(t, o)
	settled(t, 2, whatever, a)
	asked := make(chan struct{}, 100)
	stop := answers(b, 3, func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.MetadataRequest)
		res := req.ResponseKind().(*kmsg.MetadataResponse)
		for _, rt := range req.Topics {
			mt := kmsg.NewMetadataResponseTopic()
			mt.Topic, mt.TopicID, mt.ErrorCode = rt.Topic, rt.TopicID, kerr.TopicAuthorizationFailed.Code
			res.Topics = append(res.Topics, mt)
		}
		for id, addr := range b.Addrs() {
			rb := kmsg.NewMetadataResponseBroker()
			host, port, _ := net.SplitHostPort(addr)
			n, _ := strconv.Atoi(port)
			rb.NodeID, rb.Host, rb.Port = int32(id), host, int32(n)
			res.Brokers = append(res.Brokers, rb)
		}
		asked <- struct{}{}
		return res, nil, true
	})
	defer stop()
	a.client.ForceMetadataRefresh()
	<-asked
	time.Sleep(200 * time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	for _, err := range troubles { // other errors are not about the topic
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			t.Error(err)
		}
	}
}

// A member that must stop does not wait for a silent coordinator.
func TestMembersLeaveUnanswered(t *testing.T) {
	t.Parallel()
	b := broker(t, 2)
	a := join(t, options(b.Addrs(), 2, time.Minute, "a")) // a request may take a third of the session
	settled(t, 2, whatever, a)
	release := make(chan struct{})
	defer close(release)
	b.Cluster().ControlKey(13, func(kmsg.Request) (kmsg.Response, error, bool) {
		b.Cluster().SleepControl(func() { <-release })
		return nil, nil, false
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := a.Close(ctx); err == nil {
		t.Error("it has left without an answer")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it ended after %v", took)
	}
}
