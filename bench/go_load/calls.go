package main

import (
	"context"
	"log"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

const payloadSize = 1024

// messageOf returns a message of a producer, with a request id, payload, publish time and attributes
// of its own; what is no producer is sent as it is.
func messageOf(producer []byte, number uint64, random *rand.ChaCha8) []byte {
	if len(producer) == 0 || producer[0] != 0x12 {
		return producer
	}
	message := make([]byte, 0, len(producer)+payloadSize+64)
	message = protowire.AppendVarint(append(message, 0x08), number+1)
	message = append(message, producer...)
	var payload [payloadSize]byte
	random.Read(payload[:])
	message = protowire.AppendBytes(append(message, 0x1a), payload[:])
	message = protowire.AppendVarint(append(message, 0x20), uint64(time.Now().UnixMilli()))
	entry := protowire.AppendString([]byte{0x0a}, "number")
	entry = protowire.AppendString(append(entry, 0x12), strconv.FormatUint(number, 10))
	return protowire.AppendBytes(append(message, 0x3a), entry)
}

// caller is one of the calls in flight: it makes the next when the last is answered.
type caller struct {
	times             []time.Duration
	answered, refused int64
}

func (c *caller) run(connection *grpc.ClientConn, path string, producer []byte, more func() bool) {
	random := rand.NewChaCha8([32]byte{byte(len(producer))})
	for number := uint64(0); more(); number++ {
		var answer []byte
		body := messageOf(producer, number, random)
		begin := time.Now()
		if err := connection.Invoke(context.Background(), path, &body, &answer); err != nil {
			if c.refused++; c.refused == 1 {
				log.Print(err)
			}
			continue
		}
		c.answered++
		c.times = append(c.times, time.Since(begin))
	}
}

// runCalls counts the calls that end within the time; with a count, all of them.
func runCalls(port, path string, bodies [][]byte, inFlight int, seconds float64, count int64) {
	connection := connect(port)
	var begun atomic.Int64
	callers := make([]caller, inFlight)
	begin := time.Now()
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	more := func() bool {
		return time.Now().Before(end) && (count == 0 || begun.Add(1) <= count)
	}
	var group sync.WaitGroup
	for index := range callers {
		body := bodies[index%len(bodies)]
		group.Go(func() { callers[index].run(connection, path, body, more) })
	}
	group.Wait()
	passed := time.Since(begin)
	var times []time.Duration
	var answered, refused int64
	for _, each := range callers {
		times = append(times, each.times...)
		answered += each.answered
		refused += each.refused
	}
	found := map[string]any{
		"rate":     float64(answered) / passed.Seconds(),
		"answered": answered,
		"refused":  refused,
		"open":     0,
	}
	slices.Sort(times)
	if len(times) > 0 {
		found["ack_p50_ms"] = milliseconds(times[(len(times)*50+99)/100-1])
		found["ack_p99_ms"] = milliseconds(times[(len(times)*99+99)/100-1])
		found["ack_max_ms"] = milliseconds(times[len(times)-1])
	}
	report(found)
}

func milliseconds(value time.Duration) float64 {
	return float64(value) / float64(time.Millisecond)
}
