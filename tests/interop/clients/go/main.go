// franz-go at a broker: one scenario of a run; the first broken expectation ends it with status 1.
//
//	scenarios 127.0.0.1:9092 transactions
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const wait = 30 * time.Second

var (
	bootstrap string
	admin     *kadm.Client
	scenarios = map[string]func(context.Context){
		"records":      records,
		"times":        times,
		"groups":       groups,
		"newer-groups": newerGroups,
		"static":       static,
		"admin":        adminCalls,
		"transactions": transactions,
	}
)

func main() {
	bootstrap = os.Args[1]
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	client := dial()
	defer client.Close()
	admin = kadm.NewClient(client)
	scenarios[os.Args[2]](ctx)
}

// -- producing, consuming, seeking

func records(ctx context.Context) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		topic := create(ctx, "go-codec-"+name, 1)
		var sent []*kgo.Record
		for n := range 300 {
			each := &kgo.Record{
				Topic: topic, Value: []byte(strings.Repeat("v"+strconv.Itoa(n), 20)), Timestamp: time.UnixMilli(int64(1_000_000 + n)),
				Headers: []kgo.RecordHeader{{Key: "n", Value: []byte(strconv.Itoa(n))}, {Key: "nil"}, {Key: "n", Value: []byte("again")}},
			}
			if n%3 > 0 {
				each.Key = []byte("k" + strconv.Itoa(n))
			}
			if n%7 == 0 {
				each.Value = nil
			}
			sent = append(sent, each)
		}
		producer := dial(kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(20*time.Millisecond))
		must(producer.ProduceSync(ctx, sent...).FirstErr())
		producer.Close()
		for n, found := range read(ctx, topic, 0, kgo.ReadUncommitted()) {
			same(int64(n), found.Offset)
			same(sent[n].Key, found.Key)
			same(sent[n].Value, found.Value)
			same(sent[n].Timestamp.UnixMilli(), found.Timestamp.UnixMilli())
			same(sent[n].Headers, found.Headers)
		}
	}
}

func times(ctx context.Context) {
	topic := create(ctx, "go-times", 1)
	var sent []*kgo.Record
	for n := range 1000 {
		sent = append(sent, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(n)), Timestamp: time.UnixMilli(int64(1_000_000 + 10*n))})
	}
	producer := dial()
	must(producer.ProduceSync(ctx, sent...).FirstErr())
	producer.Close()
	for _, n := range []int64{0, 1, 499, 999} {
		same(n, one(admin.ListOffsetsAfterMilli(ctx, 1_000_000+10*n-5, topic))(topic, 0).Offset)
		from := kgo.NewOffset().AfterMilli(1_000_000 + 10*n - 5)
		reader := dial(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: from}}))
		same(n, poll(ctx, reader)[0].Offset)
		reader.Close()
	}
	same(int64(0), one(admin.ListStartOffsets(ctx, topic))(topic, 0).Offset)
	same(int64(1000), one(admin.ListEndOffsets(ctx, topic))(topic, 0).Offset)
	same(int64(999), one(admin.ListMaxTimestampOffsets(ctx, topic))(topic, 0).Offset)
	same(int64(0), one(admin.ListLocalLogStartOffsets(ctx, topic))(topic, 0).Offset)
}

// -- groups

func groups(ctx context.Context) {
	balancers := map[string]kgo.GroupBalancer{
		"range": kgo.RangeBalancer(), "round-robin": kgo.RoundRobinBalancer(), "sticky": kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	for name, balancer := range balancers {
		rebalance(ctx, "go-"+name, name == "cooperative-sticky", kgo.Balancers(balancer), kgo.HeartbeatInterval(200*time.Millisecond))
	}
}

func newerGroups(ctx context.Context) {
	balancers := map[string]kgo.GroupBalancer{"uniform": kgo.CooperativeStickyBalancer(), "range": kgo.RangeBalancer()}
	for name, balancer := range balancers {
		rebalance(ctx, "go-newer-"+name, true, kgo.ServerSideBalancer(), kgo.Balancers(balancer))
		group, topic := "go-assignor-"+name, create(ctx, "go-assignor-"+name, 1)
		only := join(ctx, group, topic, kgo.ServerSideBalancer(), kgo.Balancers(balancer))
		until(func() bool { return only.owns() == 1 }, only)
		told, err := admin.DescribeConsumerGroups(ctx, group)
		must(err)
		must(told[group].Err)
		same(name, told[group].AssignorName)
		only.leave()
	}
}

// rebalance lets a member come, another join and leave; every record is read once, and the commits are there at the end.
func rebalance(ctx context.Context, group string, incremental bool, options ...kgo.Opt) {
	topic := create(ctx, group, 4)
	one := join(ctx, group, topic, options...)
	fill(ctx, topic, 0, 200)
	until(func() bool { return one.owns() == 4 && one.count() == 200 }, one)
	two := join(ctx, group, topic, options...)
	until(func() bool { return one.owns() == 2 && two.owns() == 2 }, one, two)
	same(4, len(union(one, two)))
	if incremental {
		same(2, one.lost)
	} else {
		same(4, one.lost)
	}
	fill(ctx, topic, 200, 400)
	until(func() bool { return one.count()+two.count() >= 400 }, one, two)
	two.leave()
	until(func() bool { return one.owns() == 4 }, one)
	fill(ctx, topic, 400, 600)
	until(func() bool { return one.count()+two.count() >= 600 }, one)
	one.leave()
	every := map[string]bool{}
	for _, each := range append(one.seen, two.seen...) {
		every[each] = true
	}
	same(600, len(every))
	same(600, one.count()+two.count())
	same(int64(600), committed(ctx, group))
}

// static members are tried in the classic protocol: in the newer one franz-go leaves without its instance id, which Kafka refuses.
func static(ctx context.Context) {
	options := []kgo.Opt{kgo.Balancers(kgo.RangeBalancer()), kgo.HeartbeatInterval(200 * time.Millisecond)}
	first, second := append(options[:2:2], kgo.InstanceID("one")), append(options[:2:2], kgo.InstanceID("two"))
	topic := create(ctx, "go-static", 4)
	one, two := join(ctx, topic, topic, first...), join(ctx, topic, topic, second...)
	until(func() bool { return one.owns() == 2 && two.owns() == 2 && len(union(one, two)) == 4 }, one, two)
	before, kept := union(one), two.changes
	one.leave()
	again := join(ctx, topic, topic, first...)
	until(func() bool { return reflect.DeepEqual(before, union(again)) }, again, two)
	same(kept, two.changes)
	again.leave()
	two.leave()
}

// -- transactions

func transactions(ctx context.Context) {
	source, target := create(ctx, "go-source", 2), create(ctx, "go-target", 2)
	fill(ctx, source, 0, 60)
	for name, options := range map[string][]kgo.Opt{"go-mover": nil, "go-mover-newer": {kgo.ServerSideBalancer()}} {
		session, err := kgo.NewGroupTransactSession(append(options,
			kgo.SeedBrokers(bootstrap), kgo.TransactionalID(name), kgo.ConsumerGroup(name), kgo.ConsumeTopics(source),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		must(err)
		for moved, round := 0, 0; moved < 60; round++ {
			fetched := session.PollRecords(ctx, 10)
			must(fetched.Err())
			must(session.Begin())
			fetched.EachRecord(func(each *kgo.Record) {
				session.Produce(ctx, &kgo.Record{Topic: target, Value: each.Value}, func(_ *kgo.Record, err error) { must(err) })
			})
			must(session.Client().Flush(ctx))
			ended, err := session.End(ctx, kgo.TransactionEndTry(round%2 == 1))
			must(err)
			same(round%2 == 1, ended)
			if ended {
				moved += fetched.NumRecords()
			}
		}
		session.Close()
		same(int64(60), committed(ctx, name))
	}
	same(120, total(ctx, target, kgo.ReadCommitted()))
	check(total(ctx, target, kgo.ReadUncommitted()) > 120, "aborted records are in the log")

	topic := create(ctx, "go-fenced", 1)
	zombie, other := dial(kgo.TransactionalID("go-fenced")), dial(kgo.TransactionalID("go-fenced"))
	for _, each := range []*kgo.Client{zombie, other} {
		must(each.BeginTransaction())
		must(each.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
	}
	told, err := admin.DescribeTransactions(ctx, "go-fenced")
	must(err)
	same("Ongoing", told["go-fenced"].State)
	must(other.EndTransaction(ctx, kgo.TryCommit))
	err = zombie.EndTransaction(ctx, kgo.TryCommit)
	check(errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch), fmt.Sprint("the zombie was not fenced: ", err))
	zombie.Close()
	other.Close()
	same(1, len(read(ctx, topic, 0, kgo.ReadCommitted())))
}

// -- admin calls

func adminCalls(ctx context.Context) {
	topic := "go-admin"
	long, soon, compact := "1000000", "soon", "compact"
	_, err := admin.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": &long}, topic)
	must(err)
	_, err = admin.CreateTopic(ctx, 2, 1, nil, topic)
	same(true, errors.Is(err, kerr.TopicAlreadyExists))
	until(func() bool { return exists(ctx, topic) })
	grown, err := admin.UpdatePartitions(ctx, 3, topic)
	must(err)
	must(grown[topic].Err)
	until(func() bool {
		listed, err := admin.ListTopics(ctx, topic)
		must(err)
		return len(listed[topic].Partitions) == 3
	})
	fill(ctx, topic, 0, 90)

	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: &compact}, {Op: kadm.DeleteConfig, Name: "retention.ms"},
	}, topic)
	must(err)
	must(altered[0].Err)
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must(err)
	policy := ""
	for _, each := range configs[0].Configs {
		if each.Key == "cleanup.policy" {
			policy = *each.Value
		}
	}
	check(strings.Contains(policy, "compact") && strings.Contains(policy, "delete"), policy)
	altered, err = admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &soon}}, topic)
	must(err)
	same(true, errors.Is(altered[0].Err, kerr.InvalidConfig))

	var before kadm.Offsets
	before.AddOffset(topic, 0, 10, -1)
	deleted, err := admin.DeleteRecords(ctx, before)
	must(err)
	same(int64(10), deleted[topic][0].LowWatermark)
	same(int64(10), one(admin.ListStartOffsets(ctx, topic))(topic, 0).Offset)

	brokers, err := admin.ListBrokers(ctx)
	must(err)
	same(1, len(brokers))
	versions, err := admin.ApiVersions(ctx)
	must(err)
	same(1, len(versions))
	directories, err := admin.DescribeAllLogDirs(ctx, nil)
	must(err)
	must(directories[brokers[0].NodeID].Error())

	group := "go-admin-group"
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: 20, LeaderEpoch: -1, Metadata: "by hand"})
	offsets.Add(kadm.Offset{Topic: topic, Partition: 1, At: 20, LeaderEpoch: -1})
	must(admin.CommitAllOffsets(ctx, group, offsets))
	fetched, err := admin.FetchOffsets(ctx, group)
	must(err)
	same("by hand", fetched[topic][0].Metadata)
	lag, err := admin.Lag(ctx, group)
	must(err)
	same(int64(10+10+30), lag[group].Lag.Total())
	gone, err := admin.DeleteOffsets(ctx, group, kadm.TopicsSet{topic: {0: {}}})
	must(err)
	must(gone[topic][0])
	same(int64(20), committed(ctx, group))
	all, err := admin.ListGroups(ctx)
	must(err)
	same("Empty", all[group].State)
	member := join(ctx, group, topic)
	until(func() bool { return member.owns() == 3 }, member)
	_, err = admin.DeleteGroup(ctx, group)
	same(true, errors.Is(err, kerr.NonEmptyGroup))
	member.leave()
	_, err = admin.DeleteGroup(ctx, group)
	must(err)
	_, err = admin.DeleteTopic(ctx, topic)
	must(err)
	until(func() bool { return !exists(ctx, topic) })
}

// -- parts

// member is a consumer of a group that polls and commits by itself.
type member struct {
	client *kgo.Client
	done   chan struct{}
	mu     sync.Mutex
	places map[string]bool
	seen   []string
	lost   int
	// changes counts calls with something that was given or taken.
	changes int
	err     error
}

func join(ctx context.Context, group, topic string, options ...kgo.Opt) *member {
	made := &member{done: make(chan struct{}), places: map[string]bool{}}
	note := func(given bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(ctx context.Context, client *kgo.Client, changed map[string][]int32) {
			if !given {
				made.keep(client.CommitUncommittedOffsets(ctx))
			}
			made.mu.Lock()
			defer made.mu.Unlock()
			for name, numbers := range changed {
				for _, number := range numbers {
					place := fmt.Sprint(name, "-", number)
					made.changes++
					if given {
						made.places[place] = true
					} else {
						made.lost++
						delete(made.places, place)
					}
				}
			}
		}
	}
	made.client = dial(append([]kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(note(true)), kgo.OnPartitionsRevoked(note(false)),
		kgo.OnPartitionsLost(note(false)),
	}, options...)...)
	go func() {
		defer close(made.done)
		for {
			fetched := made.client.PollFetches(ctx)
			if fetched.IsClientClosed() || ctx.Err() != nil {
				return
			}
			made.keep(fetched.Err())
			made.mu.Lock()
			fetched.EachRecord(func(each *kgo.Record) { made.seen = append(made.seen, string(each.Value)) })
			made.mu.Unlock()
			made.client.AllowRebalance()
		}
	}()
	return made
}

func (m *member) keep(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = errors.Join(m.err, err)
}

func (m *member) owns() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.places)
}

func (m *member) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}

func (m *member) leave() {
	m.client.CloseAllowingRebalance()
	<-m.done
	must(m.err)
}

func union(members ...*member) map[string]bool {
	all := map[string]bool{}
	for _, each := range members {
		each.mu.Lock()
		for place := range each.places {
			all[place] = true
		}
		each.mu.Unlock()
	}
	return all
}

func dial(options ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.MetadataMinAge(50 * time.Millisecond), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, options...)...)
	must(err)
	return client
}

func create(ctx context.Context, name string, partitions int32) string {
	forever := "-1" // some records are from 1970
	_, err := admin.CreateTopic(ctx, partitions, 1, map[string]*string{"retention.ms": &forever}, name)
	must(err)
	until(func() bool { return exists(ctx, name) })
	return name
}

func exists(ctx context.Context, topic string) bool {
	listed, err := admin.ListTopics(ctx)
	must(err)
	return listed.Has(topic)
}

func fill(ctx context.Context, topic string, from, until int) {
	listed, err := admin.ListTopics(ctx, topic)
	must(err)
	var sent []*kgo.Record
	for n := from; n < until; n++ {
		sent = append(sent, &kgo.Record{
			Topic: topic, Partition: int32(n % len(listed[topic].Partitions)), Key: []byte(strconv.Itoa(n)), Value: []byte(strconv.Itoa(n)),
		})
	}
	producer := dial()
	defer producer.Close()
	must(producer.ProduceSync(ctx, sent...).FirstErr())
}

func poll(ctx context.Context, client *kgo.Client) []*kgo.Record {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	fetched := client.PollFetches(ctx)
	must(fetched.Err())
	return fetched.Records()
}

// read returns what is between the ends of a partition; an end under ReadCommitted is the last stable offset.
func read(ctx context.Context, topic string, partition int32, level kgo.IsolationLevel) []*kgo.Record {
	end := one(admin.ListEndOffsets(ctx, topic))(topic, partition).Offset
	start := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}
	reader := dial(kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords())
	defer reader.Close()
	var found []*kgo.Record
	for next := int64(0); next < end; {
		for _, each := range poll(ctx, reader) {
			next = each.Offset + 1
			if !each.Attrs.IsControl() {
				found = append(found, each)
			}
		}
	}
	return found
}

func total(ctx context.Context, topic string, level kgo.IsolationLevel) int {
	return len(read(ctx, topic, 0, level)) + len(read(ctx, topic, 1, level))
}

func committed(ctx context.Context, group string) (sum int64) {
	fetched, err := admin.FetchOffsets(ctx, group)
	must(err)
	fetched.Each(func(each kadm.OffsetResponse) { sum += each.At })
	return sum
}

func one(listed kadm.ListedOffsets, err error) func(string, int32) kadm.ListedOffset {
	must(err)
	must(listed.Error())
	return func(topic string, partition int32) kadm.ListedOffset { return listed[topic][partition] }
}

func until(holds func() bool, members ...*member) {
	for end := time.Now().Add(wait); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			told := "waited in vain"
			for _, each := range members {
				told += fmt.Sprintf("; %v and %d records, %v", union(each), each.count(), each.err)
			}
			fail(told)
		}
	}
}

func same(wanted, found any) {
	if !reflect.DeepEqual(wanted, found) {
		fail(fmt.Sprintf("wanted %#v, found %#v", wanted, found))
	}
}

func check(holds bool, what string) {
	if !holds {
		fail(what)
	}
}

func must(err error) {
	if err != nil {
		fail(err.Error())
	}
}

func fail(what string) {
	fmt.Fprintf(os.Stderr, "%s\n%s", what, debug.Stack())
	os.Exit(1)
}
