/* One HTTP/2 connection of a load generator: as little of it as unary gRPC calls and one stream of
   messages need. Requests have equal header blocks, so that no table is kept on either side. */

#ifndef BROKER_H2_H
#define BROKER_H2_H
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CALLS_RING 4096
#define READ_BYTES (256 << 10)
#define WINDOW (1 << 30)
#define WINDOW_STEP (1 << 26)
#define FRAME_BYTES_MAX 16384

static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* -- bytes ------------------------------------------------------------------------------------ */

typedef struct {
  unsigned char *data;
  size_t start, end, size;
} Buffer;

static unsigned char *buffer_room(Buffer *buffer, size_t count) {
  if (buffer->start == buffer->end) buffer->start = buffer->end = 0;
  if (buffer->size - buffer->end < count) {
    size_t used = buffer->end - buffer->start;
    memmove(buffer->data, buffer->data + buffer->start, used);
    buffer->start = 0;
    buffer->end = used;
    if (buffer->size - used < count) {
      buffer->size = (used + count) * 2;
      buffer->data = realloc(buffer->data, buffer->size);
      if (buffer->data == NULL) fail("no memory for %zu bytes", buffer->size);
    }
  }
  return buffer->data + buffer->end;
}

static void buffer_add(Buffer *buffer, const void *data, size_t count) {
  memcpy(buffer_room(buffer, count), data, count);
  buffer->end += count;
}

static size_t buffer_used(const Buffer *buffer) { return buffer->end - buffer->start; }

static size_t number_put(unsigned char *to, uint64_t value) {
  size_t count = 0;
  while (value > 127) {
    to[count++] = (unsigned char)(value & 127) | 128;
    value >>= 7;
  }
  to[count++] = (unsigned char)value;
  return count;
}

static uint64_t number_get(const unsigned char **from, const unsigned char *end) {
  uint64_t value = 0;
  for (int shift = 0; *from < end && shift < 64; shift += 7) {
    unsigned char byte = *(*from)++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  fail("a number is cut short");
  return 0;
}

/* -- a connection ----------------------------------------------------------------------------- */

typedef struct {
  double started;
  uint32_t tag;
  int has_message;
} Call;

typedef struct Connection Connection;

struct Connection {
  int fd;
  Buffer in, out, messages;
  int64_t window;
  int64_t taken, stream_taken;
  uint32_t sid_next, stream_sid;
  uint32_t calls_max, calls_open;
  int stream_over;
  uint64_t answered, refused;
  Call calls[CALLS_RING];
  void *owner;
  void (*on_message)(Connection *, const unsigned char *, size_t);
  void (*on_answer)(Connection *, const Call *, double);
};

static void frame_head(unsigned char *to, size_t size, int kind, int flags, uint32_t sid) {
  to[0] = (unsigned char)(size >> 16);
  to[1] = (unsigned char)(size >> 8);
  to[2] = (unsigned char)size;
  to[3] = (unsigned char)kind;
  to[4] = (unsigned char)flags;
  sid = htonl(sid);
  memcpy(to + 5, &sid, 4);
}

static void frame_add(Connection *c, int kind, int flags, uint32_t sid, const void *data, size_t n) {
  unsigned char head[9];
  frame_head(head, n, kind, flags, sid);
  buffer_add(&c->out, head, 9);
  if (n) buffer_add(&c->out, data, n);
}

static void window_add(Connection *c, uint32_t sid, uint32_t count) {
  count = htonl(count);
  frame_add(c, 8, 0, sid, &count, 4);
}

static void connection_open(Connection *c, int port, uint32_t stream_window) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int one = 1;
  memset(c, 0, sizeof *c);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0)
    fail("cannot connect to port %d: %s", port, strerror(errno));
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  c->window = 65535;
  c->sid_next = 1;
  c->calls_max = 100;
  buffer_add(&c->out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
  unsigned char settings[6] = {0, 4};
  uint32_t size = htonl(stream_window);
  memcpy(settings + 2, &size, 4);
  frame_add(c, 4, 0, 0, settings, 6);
  window_add(c, 0, WINDOW);
}

static void connection_flush(Connection *c) {
  while (buffer_used(&c->out)) {
    ssize_t count = write(c->fd, c->out.data + c->out.start, buffer_used(&c->out));
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) return;
      fail("cannot write: %s", strerror(errno));
    }
    c->out.start += (size_t)count;
  }
}

/* The header block of a call: POST, http, then literals that no table keeps. */
static size_t block_of(unsigned char *to, const char *path) {
  size_t count = 0, length = strlen(path);
  if (length > 100) fail("the path is too long");
  memcpy(to, "\x83\x86\x01\x09localhost\x04", 14);
  count = 14;
  to[count++] = (unsigned char)length;
  memcpy(to + count, path, length);
  count += length;
  memcpy(to + count, "\x0f\x10\x10" "application/grpc" "\x00\x02te\x08trailers", 32);
  return count + 32;
}

static int connection_has_room(const Connection *c, size_t size) {
  return c->calls_open < c->calls_max && c->window >= (int64_t)size + 5;
}

/* Begin a call; its answer is the stream of messages if `is_stream`, else `on_answer` is called. */
static void call_begin(Connection *c, const unsigned char *block, size_t block_size,
                       const unsigned char *body, size_t size, double started, uint32_t tag,
                       int is_stream) {
  unsigned char prefix[14];
  uint32_t sid = c->sid_next, length = htonl((uint32_t)size);
  if (size + 5 > FRAME_BYTES_MAX) fail("the request is too large");
  c->sid_next += 2;
  frame_add(c, 1, 4, sid, block, block_size);
  frame_head(prefix, size + 5, 0, 1, sid);
  prefix[9] = 0;
  memcpy(prefix + 10, &length, 4);
  buffer_add(&c->out, prefix, 14);
  buffer_add(&c->out, body, size);
  c->window -= (int64_t)size + 5;
  if (is_stream) {
    c->stream_sid = sid;
    return;
  }
  Call *call = &c->calls[(sid >> 1) % CALLS_RING];
  *call = (Call){.started = started, .tag = tag};
  c->calls_open++;
}

static void stream_data(Connection *c, const unsigned char *data, size_t size) {
  Buffer *messages = &c->messages;
  buffer_add(messages, data, size);
  while (buffer_used(messages) >= 5) {
    uint32_t length;
    memcpy(&length, messages->data + messages->start + 1, 4);
    length = ntohl(length);
    if (buffer_used(messages) < 5 + (size_t)length) break;
    c->on_message(c, messages->data + messages->start + 5, length);
    messages->start += 5 + (size_t)length;
  }
  c->stream_taken += (int64_t)size;
  if (c->stream_taken >= WINDOW_STEP) {
    window_add(c, c->stream_sid, (uint32_t)c->stream_taken);
    c->stream_taken = 0;
  }
}

static void call_end(Connection *c, uint32_t sid) {
  const Call *call = &c->calls[(sid >> 1) % CALLS_RING];
  c->calls_open--;
  if (call->has_message)
    c->answered++;
  else
    c->refused++;
  if (c->on_answer) c->on_answer(c, call, now());
}

static void frame_settings(Connection *c, int flags, const unsigned char *data, size_t size) {
  if (flags & 1) return;
  for (size_t at = 0; at + 6 <= size; at += 6) {
    uint32_t value;
    memcpy(&value, data + at + 2, 4);
    if (data[at] == 0 && data[at + 1] == 3) c->calls_max = ntohl(value) - 1;
  }
  if (c->calls_max > CALLS_RING / 4) c->calls_max = CALLS_RING / 4;
  frame_add(c, 4, 1, 0, NULL, 0);
}

static void frame_take(Connection *c, int kind, int flags, uint32_t sid, const unsigned char *data,
                       size_t size) {
  uint32_t value = 0;
  switch (kind) {
    case 0:
      c->taken += (int64_t)size;
      if (c->taken >= WINDOW_STEP) {
        window_add(c, 0, (uint32_t)c->taken);
        c->taken = 0;
      }
      if (sid == c->stream_sid)
        stream_data(c, data, size);
      else
        c->calls[(sid >> 1) % CALLS_RING].has_message = 1;
      /* fall through */
    case 1:
      if (!(flags & 1)) break;
      if (sid == c->stream_sid)
        c->stream_over = 1;
      else
        call_end(c, sid);
      break;
    case 3:
      if (sid == c->stream_sid) c->stream_over = 1;
      break;
    case 4:
      frame_settings(c, flags, data, size);
      break;
    case 6:
      if (!(flags & 1)) frame_add(c, 6, 1, 0, data, size);
      break;
    case 7:
      fail("the server goes away: %.*s", (int)(size > 8 ? size - 8 : 0), data + 8);
      break;
    case 8:
      memcpy(&value, data, 4);
      if (sid == 0) c->window += ntohl(value);
      break;
    default:
      break;
  }
}

/* Read once and handle all whole frames; return 0 when the server has closed. */
static int connection_read(Connection *c) {
  ssize_t count = read(c->fd, buffer_room(&c->in, READ_BYTES), READ_BYTES);
  if (count < 0) {
    if (errno == EAGAIN || errno == EINTR) return 1;
    fail("cannot read: %s", strerror(errno));
  }
  if (count == 0) return 0;
  c->in.end += (size_t)count;
  while (buffer_used(&c->in) >= 9) {
    const unsigned char *head = c->in.data + c->in.start;
    size_t size = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    uint32_t sid;
    if (buffer_used(&c->in) < 9 + size) break;
    memcpy(&sid, head + 5, 4);
    frame_take(c, head[3], head[4], ntohl(sid), head + 9, size);
    c->in.start += 9 + size;
  }
  return 1;
}

#endif
