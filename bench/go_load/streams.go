package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
)

// ackersMax bounds the acks of a consumer that are on their way at once.
const ackersMax = 256

var streamKind = grpc.StreamDesc{ServerStreams: true}

// consumer reads one stream; its acks are unary calls on the same connection.
type consumer struct {
	connection                         *grpc.ClientConn
	stream                             grpc.ClientStream
	ackPath                            string
	received, bytes, gaps, repeats     int64
	offsetNext                         uint64
	answered, refused, requestsCounted atomic.Int64
	isOver                             bool
}

func openStream(ctx context.Context, connection *grpc.ClientConn, path string, body []byte) grpc.ClientStream {
	stream, err := connection.NewStream(ctx, &streamKind, path)
	if err == nil {
		err = stream.SendMsg(&body)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err != nil {
		log.Fatalf("cannot open a stream: %v", err)
	}
	return stream
}

// run reads messages until there were enough or time is up, and waits for the answers to its acks.
func (c *consumer) run(ctx context.Context, messages int64) {
	acks := make(chan []byte, ackersMax)
	var group sync.WaitGroup
	if c.ackPath != "-" {
		for range ackersMax {
			group.Go(func() { c.sendAcks(acks) })
		}
	}
	for c.received < messages {
		var message []byte
		if err := c.stream.RecvMsg(&message); err != nil {
			c.isOver = errors.Is(err, io.EOF)
			if !c.isOver && ctx.Err() == nil {
				log.Fatalf("the stream failed: %v", err)
			}
			break
		}
		c.take(message, acks)
	}
	close(acks)
	group.Wait()
}

func (c *consumer) take(message []byte, acks chan<- []byte) {
	id, subscription, offset := fieldsOf(message)
	c.bytes += int64(len(message))
	if c.received++; c.received > 1 && offset > 0 {
		if offset > c.offsetNext {
			c.gaps += int64(offset - c.offsetNext)
		}
		if offset < c.offsetNext {
			c.repeats++
		}
	}
	c.offsetNext = max(c.offsetNext, offset+1)
	if c.ackPath != "-" {
		ack := make([]byte, 0, len(id)+len(subscription)+24)
		ack = protowire.AppendTag(ack, 1, protowire.VarintType)
		ack = protowire.AppendVarint(ack, uint64(c.requestsCounted.Add(1)))
		ack = protowire.AppendTag(ack, 2, protowire.BytesType)
		ack = protowire.AppendBytes(ack, id)
		ack = protowire.AppendTag(ack, 3, protowire.BytesType)
		ack = protowire.AppendBytes(ack, subscription)
		acks <- ack
	}
}

func (c *consumer) sendAcks(acks <-chan []byte) {
	for ack := range acks {
		var answer []byte
		if err := c.connection.Invoke(context.Background(), c.ackPath, &ack, &answer); err != nil {
			if c.refused.Add(1) == 1 {
				log.Print(err)
			}
			continue
		}
		c.answered.Add(1)
	}
}

// fieldsOf returns what an ack repeats of a StreamMessage, and the offset within its id.
func fieldsOf(message []byte) (id, subscription []byte, offset uint64) {
	each(message, func(field protowire.Number, data []byte, _ uint64) {
		switch field {
		case 2:
			id = data
		case 6:
			subscription = data
		}
	})
	each(id, func(field protowire.Number, _ []byte, value uint64) {
		if field == 5 {
			offset = value
		}
	})
	return id, subscription, offset
}

func each(message []byte, see func(field protowire.Number, data []byte, value uint64)) {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			log.Fatal("a message is malformed")
		}
		message = message[size:]
		var data []byte
		var value uint64
		if kind == protowire.BytesType {
			data, size = protowire.ConsumeBytes(message)
		} else {
			value, size = protowire.ConsumeVarint(message)
		}
		if size < 0 {
			log.Fatal("a message is malformed")
		}
		see(field, data, value)
		message = message[size:]
	}
}

// runStreams reads one stream for each body, each on a connection of its own. With hold nothing is
// read until a line comes, so that a stream has no more than the first window before.
func runStreams(port, path string, bodies [][]byte, ackPath string, messages int64, secondsMax float64, hold bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	consumers := make([]consumer, len(bodies))
	for index, body := range bodies {
		connection := connect(port)
		consumers[index].connection = connection
		consumers[index].ackPath = ackPath
		consumers[index].stream = openStream(ctx, connection, path, body)
	}
	if hold {
		time.Sleep(200 * time.Millisecond)
		fmt.Println("held")
		if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
			log.Fatal("nobody says when to begin")
		}
	}
	begin := time.Now()
	limit := time.AfterFunc(time.Duration(secondsMax*float64(time.Second)), cancel)
	var group sync.WaitGroup
	for index := range consumers {
		group.Go(func() { consumers[index].run(ctx, messages) })
	}
	group.Wait()
	limit.Stop()
	passed := time.Since(begin).Seconds()
	var received, bytes, gaps, repeats, answered, refused, ended int64
	for index := range consumers {
		c := &consumers[index]
		received, bytes = received+c.received, bytes+c.bytes
		gaps, repeats = gaps+c.gaps, repeats+c.repeats
		answered, refused = answered+c.answered.Load(), refused+c.refused.Load()
		if c.isOver {
			ended++
		}
	}
	report(map[string]any{
		"rate":     float64(received) / passed,
		"seconds":  passed,
		"received": received,
		"bytes":    bytes,
		"gaps":     gaps,
		"repeats":  repeats,
		"answered": answered,
		"refused":  refused,
		"ended":    ended,
	})
}

// runStall opens a stream and never reads from it.
func runStall(port, path string, body []byte) {
	openStream(context.Background(), connect(port), path, body)
	fmt.Println("held")
	select {}
}
