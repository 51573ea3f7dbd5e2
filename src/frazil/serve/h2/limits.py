"""Every limit of the gRPC server: nothing a peer does is unbounded."""

from __future__ import annotations

import math

import attrs


@attrs.frozen
class ServerLimits:
    """The limits of a server for its peers; each is per connection unless its name has `server`.

    Control frames are counted by the tick (`tick_s`): a peer that sends more of them gets
    ENHANCE_YOUR_CALM and its connection is closed.
    """

    # -- the whole server
    connections_max: int = 1_024
    unanswered_bytes_server_max: int = 256 << 20
    held_bytes_server_max: int = 256 << 20
    """Bytes of incomplete requests and of answers that peers have not read; above it the connection
    that was silent longest is closed."""
    streams_server_max: int = 200_000
    """Open calls; above it new ones are refused. Each costs up to 1.6 KB and its bytes."""
    read_bytes_max: int = 64 << 10
    tick_s: float = 0.5

    # -- requests
    message_bytes_max: int = 4 << 20
    streams_max: int = 12_000
    """Open calls, announced to the peer; a further stream is refused."""
    long_calls_max: int = 11_000
    """Server streams among them, which may stay open forever: other calls need room as well."""
    unfinished_bytes_max: int = 32 << 20
    """Bytes of incomplete requests; the next one is refused."""
    unanswered_bytes_max: int = 16 << 20
    """Bytes of requests that wait for their answer; above it reading pauses."""
    header_bytes_max: int = 40 << 10
    """After decompression; a larger request is refused, and its connection stays open."""
    header_bytes_read_max: int = 64 << 10
    """Unpacked; more ends the connection: the header tables are out of step."""
    open_header_bytes_max: int = 32 << 20
    """After decompression, of all open calls; above it new ones are refused."""
    continuations_max: int = 32
    cached_blocks_max: int = 64
    cached_block_bytes_max: int = 2_048
    early_closed_max: int = 4_096
    """Streams that the server ended first, whose late frames are still legal."""

    # -- windows that peers may fill
    connection_window: int = 64 << 20
    stream_window: int = 4 << 20

    # -- floods, by the tick
    resets_max: int = 2_000
    """Of streams that were opened in the same tick; older ones are as many as may be open."""
    controls_max: int = 1_000
    """PING, SETTINGS, PRIORITY, unknown kinds, DATA of next to nothing, each 4 KiB of headers."""
    window_updates_max: int = 20_000

    # -- what waits to be sent
    stream_queue_bytes: int = 256 << 10
    connection_queue_bytes: int = 4 << 20
    """Of all streams together; above it each of them may have one frame."""
    queued_bytes_max: int = 64 << 20
    """Above it, which only large answers that the peer does not read can reach, new calls are
    refused."""
    turn_bytes_max: int = 1 << 20
    write_buffer_bytes: int = 512 << 10

    # -- time
    handshake_s: float = 10.0
    first_call_s: float = math.inf
    """The time limit for the first accepted call of a connection."""
    request_s: float = 120.0
    """The time limit for a complete request; pauses of reading do not count."""
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 20.0
    stall_s: float = 120.0
    """The time limit for a peer that does not read its queued bytes."""
    quiet_s: float = 0.05
    """A draining server closes a connection after so long without a call."""
    linger_s: float = 1.0
    """The time until a GOAWAY for a client that is never quiet."""
