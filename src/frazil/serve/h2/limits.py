"""Every limit of the server, in one place: nothing a peer does is unbounded."""

from __future__ import annotations

import attrs


@attrs.frozen
class ServerLimits:
    """What a server takes from its peers, a connection where nothing else is said.

    Frames of control are counted by the tick (`tick_s`): a peer that sends more of them is told
    ENHANCE_YOUR_CALM and cut off.
    """

    # -- the whole server
    connections_max: int = 1_024
    unanswered_bytes_server_max: int = 256 << 20
    unfinished_bytes_server_max: int = 256 << 20
    """Of requests that still arrive, with what their streams cost; above it those are refused of
    the connection that holds most."""
    held_bytes_server_max: int = 256 << 20
    """Of answers that peers have not taken, with what those cost that are whole; above it the
    connection with most is cut off."""
    read_bytes_max: int = 256 << 10
    tick_s: float = 0.5

    # -- requests
    message_bytes_max: int = 4 << 20
    streams_max: int = 12_000
    """Calls under way, told to the peer; a stream beyond is refused."""
    long_calls_max: int = 11_000
    """Of them, those that stream messages and may stay open for ever: others have room beside."""
    unfinished_bytes_max: int = 32 << 20
    """Bytes of requests that have begun and not ended; the next one is refused."""
    unanswered_bytes_max: int = 16 << 20
    """Bytes of requests that wait for their answer; above it reading pauses."""
    header_bytes_max: int = 40 << 10
    """Unpacked; a request with more is refused, and its connection goes on."""
    header_bytes_read_max: int = 64 << 10
    """Unpacked; more is not even read, which ends the connection: the tables have parted."""
    open_header_bytes_max: int = 32 << 20
    """Unpacked, of all calls under way; with more a further one is refused."""
    continuations_max: int = 32
    cached_blocks_max: int = 64
    cached_block_bytes_max: int = 2_048
    early_closed_max: int = 4_096
    """Streams that the server ended first, whose late frames are still legal."""

    # -- windows that peers may fill
    connection_window: int = 64 << 20
    stream_window: int = 4 << 20

    turn_work_max: int = 5_000
    """What reading headers may cost in one turn, in microseconds or so; others have theirs next."""

    # -- floods, by the tick
    resets_max: int = 2_000
    """Of streams that were opened in the same tick; older ones are as many as may be open."""
    controls_max: int = 1_000
    """PING, SETTINGS, PRIORITY, DATA of next to nothing, unknown kinds."""
    window_updates_max: int = 20_000

    # -- what waits to be sent
    stream_queue_bytes: int = 256 << 10
    connection_queue_bytes: int = 4 << 20
    """Of all streams together; above it each of them may have one frame."""
    queued_bytes_max: int = 64 << 20
    """Above it, which only large answers that nobody reads can reach, new calls are refused."""
    turn_bytes_max: int = 1 << 20
    write_buffer_bytes: int = 512 << 10

    # -- time
    handshake_s: float = 10.0
    first_call_s: float | None = None
    """A connection on which no call was accepted for so long since it was set up is closed."""
    arriving_s: float = 30.0
    """How often requests that arrive are looked at; a tick in which nothing is read is no time."""
    arriving_bytes_min: int = 64 << 10
    """What a connection must have brought since they were looked at last, or those are refused that
    were there then."""
    arriving_looks_min: int = 64
    """So often a request is looked at on a connection that brings enough, or as often as the largest
    message takes at that rate; then it is refused."""
    arriving_refused_max: int = 500
    """So many of them at once, by the tick."""
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 20.0
    stall_s: float = 120.0
    """A peer that reads nothing for so long while bytes wait for it is cut off."""
    quiet_s: float = 0.02
    """A client that asked for nothing for so long is quiet, and may be parted from."""
    linger_s: float = 1.0
    """How long a server that stops waits for a quiet client before it sends it away."""
