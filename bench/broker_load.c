/* Load for a broker: calls at a rate or so many in flight, streams with an ack a message, and the
   way of a message from its producer to a consumer. Prints one line of JSON.

   broker_load calls PORT PATH BODIES IN_FLIGHT RATE SECONDS COUNT SEED
   broker_load stream PORT PATH BODIES ACK_PATH MESSAGES SECONDS_MAX HOLD
   broker_load way PORT SEND_PATH BODIES RECEIVE_PATH ACK_PATH RATE SECONDS
   broker_load stall PORT PATH BODIES

   BODIES is a file of requests, each after its length in four bytes. A body that begins with a
   msg_id is a producer: each of its messages gets a request id, payload, publish time and attributes
   of its own. */

#include "broker_h2.h"

#include <signal.h>

typedef struct {
  const unsigned char *data;
  uint32_t size;
} Body;

static Body *bodies;
static uint32_t bodies_count;

static void bodies_load(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) fail("cannot open %s", path);
  for (;;) {
    uint32_t size;
    if (fread(&size, 4, 1, file) != 1) break;
    unsigned char *data = malloc(size ? size : 1);
    if (data == NULL || fread(data, 1, size, file) != size) fail("%s is cut short", path);
    bodies = realloc(bodies, (bodies_count + 1) * sizeof *bodies);
    bodies[bodies_count++] = (Body){data, size};
  }
  fclose(file);
  if (!bodies_count) fail("%s has no request", path);
}

/* -- messages of producers -------------------------------------------------------------------- */

#define PAYLOAD_SIZE 1024
#define MESSAGE_MORE (PAYLOAD_SIZE + 128)

static int is_producer(const Body *body) { return body->size && body->data[0] == 0x12; }

static size_t field_bytes(unsigned char *to, unsigned char tag, const void *data, size_t size) {
  size_t count = 0;
  to[count++] = tag;
  count += number_put(to + count, size);
  memcpy(to + count, data, size);
  return count + size;
}

/* Write the message of a producer with this number, and a time at the front of its payload. */
static uint32_t message_write(unsigned char *to, const Body *producer, uint64_t number, double at) {
  static uint64_t state = 88172645463325252ull;
  uint64_t payload[PAYLOAD_SIZE / 8];
  for (size_t i = 1; i < PAYLOAD_SIZE / 8; i++) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    payload[i] = state;
  }
  memcpy(payload, &at, sizeof at);
  struct timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  size_t count = 0;
  to[count++] = 0x08;
  count += number_put(to + count, number + 1);
  memcpy(to + count, producer->data, producer->size);
  count += producer->size;
  count += field_bytes(to + count, 0x1a, payload, sizeof payload);
  to[count++] = 0x20;
  count += number_put(to + count, (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000);
  unsigned char entry[64];
  char text[24];
  size_t size = field_bytes(entry, 0x0a, "number", 6);
  size += field_bytes(entry + size, 0x12, text, (size_t)sprintf(text, "%lu", number));
  return (uint32_t)(count + field_bytes(to + count, 0x3a, entry, size));
}

/* -- times ------------------------------------------------------------------------------------ */

typedef struct {
  double *values;
  size_t count, size;
} Times;

static void times_add(Times *times, double value) {
  if (times->count == times->size) {
    times->size = times->size ? times->size * 2 : 1 << 16;
    times->values = realloc(times->values, times->size * sizeof(double));
    if (times->values == NULL) fail("no memory for times");
  }
  times->values[times->count++] = value;
}

static int times_order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void times_print(Times *times, const char *name) {
  size_t count = times->count;
  if (!count) return;
  qsort(times->values, count, sizeof(double), times_order);
  printf(", \"%s_p50_ms\": %.6f, \"%s_p99_ms\": %.6f, \"%s_max_ms\": %.6f", name,
         times->values[(count * 50 + 99) / 100 - 1] * 1e3, name,
         times->values[(count * 99 + 99) / 100 - 1] * 1e3, name, times->values[count - 1] * 1e3);
}

/* -- waiting ---------------------------------------------------------------------------------- */

/* Flush, wait until a connection can be read or time is up, read; return 0 if one was closed. */
static int turn(Connection *all, uint32_t count, double seconds) {
  struct pollfd polled[count];
  for (uint32_t i = 0; i < count; i++) {
    connection_flush(&all[i]);
    polled[i] = (struct pollfd){.fd = all[i].fd, .events = POLLIN};
    if (buffer_used(&all[i].out)) polled[i].events |= POLLOUT;
  }
  struct timespec limit = {0};
  if (seconds > 0) {
    limit.tv_sec = (time_t)seconds;
    limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
  }
  if (ppoll(polled, count, &limit, NULL) < 0 && errno != EINTR) fail("cannot wait");
  for (uint32_t i = 0; i < count; i++)
    if ((polled[i].revents & (POLLIN | POLLERR | POLLHUP)) && !connection_read(&all[i])) return 0;
  return 1;
}

/* -- calls ------------------------------------------------------------------------------------ */

static Times calls_times;

static void calls_answer(Connection *c, const Call *call, double at) {
  (void)c;
  times_add(&calls_times, at - call->started);
}

static int run_calls(char **given) {
  static Connection c;
  unsigned char block[256];
  size_t block_size = block_of(block, given[1]);
  uint32_t in_flight = (uint32_t)atoi(given[3]);
  double rate = atof(given[4]), seconds = atof(given[5]);
  uint64_t limit = strtoull(given[6], NULL, 10), begun = 0;
  bodies_load(given[2]);
  srandom((unsigned)atoi(given[7]));
  uint32_t largest = 0;
  for (uint32_t i = 0; i < bodies_count; i++)
    if (bodies[i].size > largest) largest = bodies[i].size;
  unsigned char *message = malloc(largest + MESSAGE_MORE);
  connection_open(&c, atoi(given[0]), WINDOW);
  c.on_answer = calls_answer;
  double begin = now(), at = begin;
  while (at - begin < seconds && (!limit || begun < limit)) {
    for (;;) {
      double due = rate > 0 ? begin + (double)begun / rate : at;
      if (due > at || (limit && begun >= limit)) break;
      if (rate <= 0 && c.calls_open >= in_flight) break;
      int made = is_producer(&bodies[0]);
      uint32_t which = made ? (uint32_t)(begun % bodies_count) : (uint32_t)random() % bodies_count;
      Body body = bodies[which];
      if (!connection_has_room(&c, body.size + MESSAGE_MORE)) break;
      if (made) body = (Body){message, message_write(message, &bodies[which], begun, at)};
      call_begin(&c, block, block_size, body.data, body.size, due, which, 0);
      begun++;
    }
    double due = rate > 0 ? begin + (double)begun / rate : at + 1;
    if (!turn(&c, 1, due - now())) fail("the server closed the connection");
    at = now();
  }
  double measured = at - begin;
  uint64_t counted = c.answered;
  for (double until = at + 30; c.calls_open && at < until; at = now())
    if (!turn(&c, 1, 1)) fail("the server closed the connection");
  if (limit) {
    measured = at - begin;
    counted = c.answered;
  }
  printf("{\"rate\": %.3f, \"begun\": %lu, \"answered\": %lu, \"refused\": %lu, \"open\": %u",
         (double)counted / measured, begun, c.answered, c.refused, c.calls_open);
  times_print(&calls_times, "ack");
  puts("}");
  return 0;
}

/* -- messages --------------------------------------------------------------------------------- */

typedef struct {
  const unsigned char *id, *subscription, *payload;
  size_t id_size, subscription_size, payload_size;
  uint64_t offset;
} Message;

static Message message_read(const unsigned char *data, size_t size) {
  Message found = {0};
  const unsigned char *end = data + size;
  while (data < end) {
    uint64_t tag = number_get(&data, end), value = number_get(&data, end);
    if ((tag & 7) == 0) continue;
    if ((tag & 7) != 2 || value > (uint64_t)(end - data)) fail("a message is malformed");
    if (tag >> 3 == 2) {
      found.id = data;
      found.id_size = value;
    } else if (tag >> 3 == 3) {
      found.payload = data;
      found.payload_size = value;
    } else if (tag >> 3 == 6) {
      found.subscription = data;
      found.subscription_size = value;
    }
    data += value;
  }
  if (found.id == NULL) fail("a message has no id");
  const unsigned char *at = found.id, *id_end = found.id + found.id_size;
  while (at < id_end) {
    uint64_t tag = number_get(&at, id_end), value = number_get(&at, id_end);
    if (tag >> 3 == 5) found.offset = value;
    if ((tag & 7) == 2) at += value;
  }
  return found;
}

static size_t ack_write(unsigned char *to, const Message *message, uint64_t request_id) {
  size_t count = 0;
  to[count++] = 0x08;
  count += number_put(to + count, request_id);
  to[count++] = 0x12;
  count += number_put(to + count, message->id_size);
  memcpy(to + count, message->id, message->id_size);
  count += message->id_size;
  to[count++] = 0x1a;
  count += number_put(to + count, message->subscription_size);
  memcpy(to + count, message->subscription, message->subscription_size);
  return count + message->subscription_size;
}

/* One consumer: its stream, the acks that wait for room, what it has seen. */
typedef struct {
  Buffer waiting;
  uint64_t received, bytes, gaps, repeats, offset_next;
  int is_late;
  const unsigned char *block;
  size_t block_size;
} Consumer;

static uint64_t request_last;

static void consumer_send(Connection *c) {
  Consumer *consumer = c->owner;
  Buffer *waiting = &consumer->waiting;
  while (buffer_used(waiting)) {
    uint32_t size;
    memcpy(&size, waiting->data + waiting->start, 4);
    if (!connection_has_room(c, size)) return;
    call_begin(c, consumer->block, consumer->block_size, waiting->data + waiting->start + 4, size,
               0, 0, 0);
    waiting->start += 4 + (size_t)size;
  }
}

static void consumer_ack(Connection *c, const Message *message) {
  Consumer *consumer = c->owner;
  unsigned char body[1024];
  if (message->id_size + message->subscription_size > 900) fail("an ack would be too large");
  uint32_t size = (uint32_t)ack_write(body, message, ++request_last);
  buffer_add(&consumer->waiting, &size, 4);
  buffer_add(&consumer->waiting, body, size);
  consumer_send(c);
}

static void consumer_message(Connection *c, const unsigned char *data, size_t size) {
  Consumer *consumer = c->owner;
  Message message = message_read(data, size);
  if (consumer->is_late) return;
  consumer->bytes += size;
  if (consumer->received++ && message.offset) {
    if (message.offset > consumer->offset_next) consumer->gaps += message.offset - consumer->offset_next;
    if (message.offset < consumer->offset_next) consumer->repeats++;
  }
  if (message.offset >= consumer->offset_next) consumer->offset_next = message.offset + 1;
  if (consumer->block != NULL) consumer_ack(c, &message);
}

static void consumer_answer(Connection *c, const Call *call, double at) {
  (void)call;
  (void)at;
  consumer_send(c);
}

static int consumer_done(const Connection *c, uint64_t messages) {
  const Consumer *consumer = c->owner;
  return c->stream_over || (consumer->received >= messages && !buffer_used(&consumer->waiting) &&
                            !c->calls_open);
}

/* With `hold` the windows of the streams are closed until a line comes: a backlog can build up. */
static int run_stream(char **given) {
  unsigned char block[256], ack_block[256];
  size_t block_size = block_of(block, given[1]);
  size_t ack_size = strcmp(given[3], "-") ? block_of(ack_block, given[3]) : 0;
  uint64_t messages = strtoull(given[4], NULL, 10);
  double seconds_max = atof(given[5]);
  int hold = atoi(given[6]), done = 0;
  bodies_load(given[2]);
  uint32_t count = bodies_count;
  Connection *all = calloc(count, sizeof *all);
  Consumer *consumers = calloc(count, sizeof *consumers);
  for (uint32_t i = 0; i < count; i++) {
    connection_open(&all[i], atoi(given[0]), hold ? 0 : WINDOW);
    all[i].owner = &consumers[i];
    all[i].on_message = consumer_message;
    all[i].on_answer = consumer_answer;
    if (ack_size) consumers[i].block = ack_block, consumers[i].block_size = ack_size;
    call_begin(&all[i], block, block_size, bodies[i].data, bodies[i].size, 0, 0, 1);
  }
  if (hold) {
    for (double until = now() + 0.2; now() < until;)
      if (!turn(all, count, 0.05)) fail("the server closed the connection");
    puts("held");
    fflush(stdout);
    if (getchar() == EOF) fail("nobody says when to begin");
    for (uint32_t i = 0; i < count; i++) window_add(&all[i], all[i].stream_sid, WINDOW);
  }
  double begin = now(), at = begin;
  while (!done && at - begin < seconds_max) {
    if (!turn(all, count, 0.5)) fail("the server closed the connection");
    at = now();
    done = 1;
    for (uint32_t i = 0; i < count; i++)
      if (!consumer_done(&all[i], messages)) done = 0;
  }
  double end = at;
  /* Time is up: what comes now is not counted, nor acked; acks on their way are waited for. */
  for (uint32_t i = 0; i < count; i++) consumers[i].is_late = 1;
  for (int open = !done; open && at - end < 30; at = now()) {
    if (!turn(all, count, 0.1)) fail("the server closed the connection");
    open = 0;
    for (uint32_t i = 0; i < count; i++)
      if (buffer_used(&consumers[i].waiting) || all[i].calls_open) open = 1;
  }
  uint64_t received = 0, gaps = 0, repeats = 0, answered = 0, refused = 0, ended = 0, bytes = 0;
  for (uint32_t i = 0; i < count; i++) {
    received += consumers[i].received, gaps += consumers[i].gaps;
    repeats += consumers[i].repeats, bytes += consumers[i].bytes;
    answered += all[i].answered, refused += all[i].refused, ended += (uint64_t)all[i].stream_over;
  }
  printf("{\"rate\": %.3f, \"seconds\": %.6f, \"received\": %lu, \"bytes\": %lu, \"gaps\": %lu, "
         "\"repeats\": %lu, \"answered\": %lu, \"refused\": %lu, \"ended\": %lu}\n",
         (double)received / (end - begin), end - begin, received, bytes, gaps, repeats, answered,
         refused, ended);
  return 0;
}

/* -- the way of a message --------------------------------------------------------------------- */

static Times way_times, way_acks;

static void way_message(Connection *c, const unsigned char *data, size_t size) {
  Message message = message_read(data, size);
  double sent;
  if (message.payload_size >= sizeof sent) {
    memcpy(&sent, message.payload, sizeof sent);
    times_add(&way_times, now() - sent);
  }
  consumer_message(c, data, size);
}

static void way_answer(Connection *c, const Call *call, double at) {
  (void)c;
  times_add(&way_acks, at - call->started);
}

/* The first body is what is sent, the second one opens the stream. */
static int run_way(char **given) {
  static Connection all[2];
  static Consumer consumer;
  unsigned char send_block[256], block[256], ack_block[256];
  size_t send_size = block_of(send_block, given[1]), block_size = block_of(block, given[3]);
  double rate = atof(given[5]), seconds = atof(given[6]);
  bodies_load(given[2]);
  if (bodies_count != 2 || !is_producer(&bodies[0])) fail("wrong bodies");
  connection_open(&all[0], atoi(given[0]), WINDOW);
  connection_open(&all[1], atoi(given[0]), WINDOW);
  all[0].on_answer = way_answer;
  consumer.block = ack_block;
  consumer.block_size = block_of(ack_block, given[4]);
  all[1].owner = &consumer;
  all[1].on_message = way_message;
  all[1].on_answer = consumer_answer;
  call_begin(&all[1], block, block_size, bodies[1].data, bodies[1].size, 0, 0, 1);
  unsigned char *body = malloc(bodies[0].size + MESSAGE_MORE);
  double begin = now() + 0.5;
  uint64_t sent = 0, count = (uint64_t)(rate * seconds);
  while (sent < count || ((consumer.received < count || all[0].calls_open || all[1].calls_open) &&
                          now() < begin + seconds + 30)) {
    double due = sent < count ? begin + (double)sent / rate : now() + 0.5, at = now();
    if (sent < count && due <= at) {
      uint32_t size = message_write(body, &bodies[0], sent, at);
      call_begin(&all[0], send_block, send_size, body, size, at, 0, 0);
      sent++;
      continue;
    }
    if (!turn(all, 2, due - at)) fail("the server closed the connection");
  }
  printf("{\"sent\": %lu, \"received\": %lu, \"answered\": %lu, \"refused\": %lu, \"acked\": %lu",
         sent, consumer.received, all[0].answered, all[0].refused, all[1].answered);
  times_print(&way_times, "way");
  times_print(&way_acks, "ack");
  puts("}");
  return 0;
}

/* -- a consumer that never reads -------------------------------------------------------------- */

static int run_stall(char **given) {
  static Connection c;
  unsigned char block[256];
  size_t block_size = block_of(block, given[1]);
  bodies_load(given[2]);
  connection_open(&c, atoi(given[0]), WINDOW);
  call_begin(&c, block, block_size, bodies[0].data, bodies[0].size, 0, 0, 1);
  connection_flush(&c);
  puts("held");
  fflush(stdout);
  for (;;) pause();
  return 0;
}

int main(int count, char **given) {
  signal(SIGPIPE, SIG_IGN);
  if (count == 10 && !strcmp(given[1], "calls")) return run_calls(given + 2);
  if (count == 9 && !strcmp(given[1], "stream")) return run_stream(given + 2);
  if (count == 9 && !strcmp(given[1], "way")) return run_way(given + 2);
  if (count == 5 && !strcmp(given[1], "stall")) return run_stall(given + 2);
  fail("wrong arguments");
  return 2;
}
