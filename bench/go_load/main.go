// Load for a broker through grpc-go, the library of Danube's Go client, with its defaults: calls with
// so many in flight, and streams with an ack a message. Messages stay bytes. Prints one line of JSON.
//
//	go_load calls PORT PATH BODIES IN_FLIGHT RATE SECONDS COUNT SEED
//	go_load stream PORT PATH BODIES ACK_PATH MESSAGES SECONDS_MAX HOLD
//	go_load stall PORT PATH BODIES
//
// The arguments are those of broker_load.c; RATE must be 0. Each call in flight has a body of its own,
// in turn.
package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

// rawCodec leaves messages as they are: *[]byte in both directions.
type rawCodec struct{}

func (rawCodec) Marshal(value any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*value.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, value any) error {
	*value.(*[]byte) = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "proto" }

func connect(port string) *grpc.ClientConn {
	connection, err := grpc.NewClient(
		"127.0.0.1:"+port,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})),
	)
	if err != nil {
		log.Fatalf("cannot connect: %v", err)
	}
	return connection
}

// loadBodies reads requests, each after its length in four bytes.
func loadBodies(path string) [][]byte {
	data, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	var bodies [][]byte
	for len(data) >= 4 {
		size := int(binary.NativeEndian.Uint32(data))
		if size > len(data)-4 {
			log.Fatalf("%s is cut short", path)
		}
		bodies = append(bodies, data[4:4+size])
		data = data[4+size:]
	}
	if len(bodies) == 0 {
		log.Fatalf("%s has no request", path)
	}
	return bodies
}

func number(text string) float64 {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		log.Fatalf("not a number: %s", text)
	}
	return value
}

func report(found map[string]any) {
	text, err := json.Marshal(found)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
}

func main() {
	given := os.Args[1:]
	switch {
	case len(given) == 9 && given[0] == "calls" && number(given[5]) == 0:
		runCalls(given[1], given[2], loadBodies(given[3]),
			int(number(given[4])), number(given[6]), int64(number(given[7])))
	case len(given) == 8 && given[0] == "stream":
		runStreams(given[1], given[2], loadBodies(given[3]), given[4],
			int64(number(given[5])), number(given[6]), given[7] != "0")
	case len(given) == 4 && given[0] == "stall":
		runStall(given[1], given[2], loadBodies(given[3])[0])
	default:
		log.Fatal("wrong arguments")
	}
}
