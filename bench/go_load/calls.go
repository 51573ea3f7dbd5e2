package main

import (
	"context"
	"log"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// caller is one of the calls in flight: it makes the next when the last is answered.
type caller struct {
	times             []time.Duration
	answered, refused int64
}

func (c *caller) run(connection *grpc.ClientConn, path string, body []byte, more func() bool) {
	for more() {
		var answer []byte
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
func runCalls(port, path string, body []byte, inFlight int, seconds float64, count int64) {
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
