"""Every metric, and the path of its value in the facts.

Facts are one tree, read at each scrape: `engine` is `Engine.stats()`, `process` the system's
figures for the process, `ports` the counters of each listener by name, `guard` is `Guard.stats()`,
`http` the HTTP port's counters, `subscriptions` and `schemas` the broker's counters of them. A
metric without a value is omitted.

Names end in their unit, counters in `_total`; times are seconds, sizes bytes, shares 0 to 1. No
label is a topic, key, offset, client or any other value that users choose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import attrs

from frazil.serve.grpc.codec import Code

if TYPE_CHECKING:
    from frazil.serve.grpc.calls import Counters

__all__ = [
    "CONTENT_TYPE",
    "METRICS",
    "Metric",
    "Reader",
    "at",
    "by_key",
    "count_of",
    "metrics_text",
    "one_of",
    "port_facts",
    "render",
    "share",
    "total",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_MAX: Final = 64
"""No metric has more lines: a label that could have any number of values is a mistake."""
LABEL_CHARACTERS_MAX: Final = 64
_MOST: Final = sys.float_info.max

Facts = Mapping[str, Any]


Labels = tuple[tuple[str, str], ...]
Reader = Callable[[Facts], Iterable[tuple[Labels, Any]]]
"""Returns values with their labels; the page omits values that are not finite."""


class Metric(NamedTuple):
    """One metric: its name with unit, its description, and the paths of its values."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    read: Reader
    scale: float = 1.0


def _found(facts: Facts, path: str) -> Any:
    """Return the value at a dotted path, None if the tree does not have it."""
    value: Any = facts
    for step in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _entries(facts: Facts, path: str) -> Mapping[Any, Any] | None:
    """Return the entries of the list or mapping at a path, None if there is neither."""
    found = _found(facts, path)
    if isinstance(found, list | tuple):
        return dict(enumerate(found))
    return found if isinstance(found, Mapping) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and -_MOST <= value <= _MOST else None


def at(path: str) -> Reader:
    """Read the number at a path; nothing if it is not there."""
    return lambda facts: [((), _found(facts, path))]


def by_key(label: str, path: str) -> Reader:
    """Read a mapping of numbers; each key is a value of the label."""
    return lambda facts: [
        (((label, str(key)),), value)
        for key, value in sorted((_entries(facts, path) or {}).items())
    ]


def total(path: str, inner: str) -> Reader:
    """Read a list or mapping of trees; return the sum of their values at `inner`."""

    def read(facts: Facts) -> Iterator[tuple[Labels, Any]]:
        trees = _entries(facts, path)
        if trees is not None:
            yield (), sum(_number(_found(tree, inner)) or 0.0 for tree in trees.values())

    return read


def count_of(path: str) -> Reader:
    """Read how many entries a list or mapping has."""

    def read(facts: Facts) -> Iterator[tuple[Labels, Any]]:
        entries = _entries(facts, path)
        if entries is not None:
            yield (), len(entries)

    return read


def share(part: str, whole: str) -> Reader:
    """Read one number as a share of another."""

    def read(facts: Facts) -> Iterator[tuple[Labels, Any]]:
        value, all_of_it = _number(_found(facts, part)), _number(_found(facts, whole))
        if value is not None and all_of_it:
            yield (), value / all_of_it

    return read


def one_of(label: str, path: str, *values: str) -> Reader:
    """Read a text as one line per possible text: 1 for the current one, 0 for the others."""
    return lambda facts: [
        (((label, value),), value == found)
        for found in [_found(facts, path)]
        if found
        for value in values
    ]


def render(metrics: Iterable[Metric], facts: Facts) -> str:
    """Return the text of all metrics that have a value."""
    lines: list[str] = []
    for metric in metrics:
        found = ((labels, _number(value)) for labels, value in metric.read(facts))
        scaled = ((labels, each * metric.scale) for labels, each in found if each is not None)
        samples = list(islice(scaled, SAMPLES_MAX))
        if samples:
            lines.append(f"# HELP {metric.name} {_escaped(metric.text, quotes=False)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines += [_line(metric.name, labels, value) for labels, value in samples]
    return "\n".join([*lines, ""])


def _line(name: str, labels: Labels, value: float) -> str:
    words = ",".join(
        f'{label}="{_escaped(word[:LABEL_CHARACTERS_MAX], quotes=True)}"' for label, word in labels
    )
    shown = int(value) if value.is_integer() else value
    return f"{name}{{{words}}} {shown}" if words else f"{name} {shown}"


def _escaped(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


_US: Final = 1e-6


def port_facts(counters: Counters) -> dict[str, Any]:
    """Return one listener's counters as facts."""
    facts = attrs.asdict(counters)
    statuses: list[int] = facts.pop("statuses")
    return {**facts, "statuses": {code.name.lower(): statuses[code] for code in Code}}


def _gauge(name: str, text: str, read: Reader, scale: float = 1.0) -> Metric:
    return Metric(f"frazil_{name}", "gauge", text, read, scale)


def _counter(name: str, text: str, read: Reader) -> Metric:
    assert name.endswith("_total"), name
    return Metric(f"frazil_{name}", "counter", text, read)


def _quantiles(path: str, suffix: str = "") -> Reader:
    return lambda facts: [
        ((("quantile", quantile),), _found(facts, f"{path}.{name}{suffix}"))
        for quantile, name in (("0.5", "p50"), ("0.99", "p99"))
    ]


def _ports(name: str) -> Reader:
    """Read one counter of every listener."""
    return lambda facts: [
        ((("port", port),), counters[name])
        for port, counters in sorted(facts.get("ports", {}).items())
    ]


def _statuses(facts: Facts) -> Iterator[tuple[Labels, Any]]:
    for port, counters in sorted(facts.get("ports", {}).items()):
        for status, count in counters["statuses"].items():
            yield (("port", port), ("status", status)), count


def _journal(name: str) -> Reader:
    return at(f"engine.journal.{name}")


_HEALTH: Final = one_of("state", "engine.health", "ok", "degraded", "failed")
_ZONE: Final = one_of("zone", "engine.tiers.pressure.zone", "green", "yellow", "red")
_LAKE: Final = one_of("state", "engine.lake.state", "off", "idle", "starting", "running")
_PRESSURE: Final = "engine.tiers.pressure"
_TOTALS: Final = "engine.lake.totals"
_OBJECTS: Final = "engine.objects.totals"
_METADATA: Final = "engine.metadata"

METRICS: Final[tuple[Metric, ...]] = (
    # -- the engine
    _gauge("health", "The engine's state.", _HEALTH),
    _gauge("topics", "Topics, parts counted.", at("engine.topics")),
    _gauge("records", "Records that can be read.", at("engine.message_count")),
    _gauge("stored_bytes", "Records in the log and on disk.", at("engine.bytes_stored")),
    _gauge("gaps", "Ranges without records.", total("engine.per_topic", "gaps")),
    _gauge("lost_records", "Records lost to damage.", total("engine.per_topic", "lost_records")),
    _gauge("upkeep_failing", "Tasks of upkeep that fail.", count_of("engine.upkeep.errors")),
    _gauge("damaged_segments", "Segments that are damaged.", count_of("engine.upkeep.damage")),
    _gauge("warnings", "Warnings since the start.", count_of("engine.warnings")),
    _gauge("volume_free_bytes", "Room on the volume.", at("engine.disk.free_bytes")),
    _gauge("volume_bytes", "Size of the volume.", at("engine.disk.total_bytes")),
    _gauge("publishing_stopped", "1 if there is no room.", at("engine.disk.publishing_stopped")),
    # -- the log
    _gauge("log_segments", "Segments.", _journal("segments")),
    _gauge("log_queued_records", "Records that wait for the writer.", _journal("queued_records")),
    _counter("log_syncs_total", "Syncs.", _journal("syncs")),
    _counter("log_groups_total", "Groups that were committed together.", _journal("groups")),
    _counter("log_written_bytes_total", "Bytes written.", _journal("bytes_written")),
    _counter("log_read_bytes_total", "Bytes read.", _journal("bytes_read")),
    _counter("log_freed_segments_total", "Segments freed.", at("engine.upkeep.segments_freed")),
    _gauge("log_torn_bytes", "Cut off at the start.", _journal("recovery.bytes_torn")),
    _gauge("log_rescanned_frames", "Read at the start.", _journal("recovery.frames_scanned")),
    _gauge(
        "log_ack_seconds",
        "From a publish to its ack, of the last few thousand.",
        _quantiles("engine.latencies.ack", "_us"),
        _US,
    ),
    # -- memory, its zones and signals
    _gauge("memory_zone", "The zone of back-pressure.", _ZONE),
    _gauge("memory_used_ratio", "Use of the budget.", at(f"{_PRESSURE}.percent"), 0.01),
    _gauge("memory_used_bytes", "Use of the budget.", at(f"{_PRESSURE}.used_bytes")),
    _gauge("memory_budget_bytes", "The budget.", at(f"{_PRESSURE}.budget_bytes")),
    _gauge("memory_source_bytes", "Use by source.", by_key("source", f"{_PRESSURE}.sources")),
    _gauge("process_resident_bytes", "Size of the process.", at(f"{_PRESSURE}.rss_bytes")),
    _counter("memory_zone_entries_total", "Zones entered.", by_key("zone", f"{_PRESSURE}.entries")),
    _counter("memory_delays_total", "Publishes delayed.", at(f"{_PRESSURE}.delays")),
    _counter("memory_delay_seconds_total", "Time of delays.", at(f"{_PRESSURE}.delayed_s")),
    _counter("memory_waits_total", "Publishes that waited in red.", at(f"{_PRESSURE}.waits")),
    _counter("memory_refusals_total", "Publishes refused in red.", at(f"{_PRESSURE}.refusals")),
    _gauge("memory_waiting", "Publishes that wait now.", at(f"{_PRESSURE}.waiting")),
    _gauge("memory_index_keys", "Keys indexed.", total("engine.per_topic", "tiers.index.keys")),
    # Sums over the topics there are: they fall when a topic is deleted, so they are no counters.
    _gauge("memory_flushes", "Flushes.", total("engine.per_topic", "tiers.flushes")),
    _gauge("memory_flushed_bytes", "Flushed.", total("engine.per_topic", "tiers.flushed_bytes")),
    _counter("signals_total", "Signals fired.", by_key("signal", "engine.tiers.signals_fired")),
    # -- files on disk
    _gauge("disk_files", "Files.", at("engine.tiers.disk.files")),
    _gauge("disk_bytes", "Bytes of files.", at("engine.tiers.disk.bytes")),
    _gauge("disk_purpose_bytes", "By purpose.", by_key("purpose", "engine.tiers.disk.purposes")),
    _gauge(
        "disk_used_ratio",
        "Use of what files may use.",
        share("engine.tiers.disk.bytes", "engine.tiers.disk.bytes_max"),
    ),
    _gauge("tiers_failing", "Tasks of tiers that fail.", count_of("engine.tiers.errors")),
    # -- Iceberg
    _gauge("lake_state", "The lake's state.", _LAKE),
    _gauge("lake_topics", "Topics with a table, by state.", by_key("state", f"{_TOTALS}.states")),
    _gauge("lake_lag_records", "Records not in tables yet.", at(f"{_TOTALS}.lag_records")),
    _gauge("lake_lag_bytes", "Bytes not in tables yet.", at(f"{_TOTALS}.lag_bytes")),
    _gauge("lake_lag_seconds", "Age of the oldest of them.", at(f"{_TOTALS}.lag_seconds")),
    _counter("lake_commits_total", "Commits.", at(f"{_TOTALS}.commits")),
    _counter("lake_rows_total", "Rows committed.", at(f"{_TOTALS}.rows")),
    _counter("lake_rejected_rows_total", "Rows rejected.", at(f"{_TOTALS}.rejected")),
    _counter("lake_files_total", "Files committed.", at(f"{_TOTALS}.files")),
    _counter("lake_bytes_total", "Bytes committed.", at(f"{_TOTALS}.bytes")),
    _counter("lake_failures_total", "Commits to be tried again.", at(f"{_TOTALS}.failures")),
    _counter("lake_stops_total", "Topics that stopped.", at(f"{_TOTALS}.stops")),
    _counter("lake_worker_starts_total", "Starts of Spark.", at("engine.lake.worker.starts")),
    _gauge(
        "lake_commit_seconds",
        "Duration of commits, of the last hundred of each topic.",
        _quantiles(f"{_TOTALS}.commit_seconds"),
    ),
    # -- the object store
    _gauge("objects_topics", "Topics uploaded, by state.", by_key("state", f"{_OBJECTS}.states")),
    _gauge("objects_lag_records", "Records not uploaded yet.", at(f"{_OBJECTS}.lag_records")),
    _gauge("objects_lag_bytes", "Bytes not uploaded yet.", at(f"{_OBJECTS}.lag_bytes")),
    _gauge("objects_lag_seconds", "Age of the oldest of them.", at(f"{_OBJECTS}.lag_seconds")),
    _gauge("objects_registered", "Objects of topics.", at(f"{_OBJECTS}.objects")),
    _gauge("objects_stored_bytes", "Records in objects.", at(f"{_OBJECTS}.bytes")),
    _gauge("objects_unreadable", "Missing or damaged.", at(f"{_OBJECTS}.unreadable")),
    _counter("objects_uploaded_total", "Uploaded.", at(f"{_OBJECTS}.objects_uploaded")),
    _counter("objects_uploaded_bytes_total", "Uploaded.", at(f"{_OBJECTS}.bytes_uploaded")),
    _counter("objects_failures_total", "Uploads to be tried again.", at(f"{_OBJECTS}.failures")),
    # -- queries
    _gauge(
        "query_seconds",
        "Duration of queries, of the last few thousand.",
        _quantiles("engine.latencies.query", "_us"),
        _US,
    ),
    # -- the metadata: `local` of this machine, `shared` on servers, where there are some
    _counter("metadata_operations_total", "Calls.", by_key("store", f"{_METADATA}.operations")),
    _counter("metadata_failures_total", "Not answered.", by_key("store", f"{_METADATA}.failures")),
    _counter("metadata_seconds_total", "Time of calls.", by_key("store", f"{_METADATA}.seconds")),
    _gauge("metadata_failing", "1 if it does not work.", at(f"{_METADATA}.failing")),
    # -- the broker's process
    _counter("process_cpu_seconds_total", "Time on processors.", at("process.cpu_s")),
    _gauge("process_resident_peak_bytes", "Most memory so far.", at("process.resident_bytes_max")),
    _gauge("process_uptime_seconds", "Time since the start.", at("process.uptime_s")),
    # -- the broker's listeners
    _gauge("server_connections", "Open connections.", _ports("connections")),
    _counter("server_connections_total", "Connections.", _ports("connections_total")),
    _counter(
        "server_connections_refused_total",
        "Connections beyond the limit.",
        _ports("connections_refused_total"),
    ),
    _counter(
        "server_connections_failed_total",
        "Connections ended for a fault of the peer.",
        _ports("connections_failed_total"),
    ),
    _counter(
        "server_connections_cut_total",
        "Connections cut off for the sake of the others.",
        _ports("connections_cut_total"),
    ),
    _counter("server_calls_total", "Calls.", _ports("calls_total")),
    _counter("server_calls_ended_total", "Calls by their status.", _statuses),
    _counter("server_calls_cancelled_total", "Calls given up.", _ports("cancelled_total")),
    _counter(
        "server_handler_errors_total", "Calls that met a bug.", _ports("handler_errors_total")
    ),
    _counter("server_received_bytes_total", "Bytes received.", _ports("received_bytes_total")),
    _counter("server_sent_bytes_total", "Bytes sent.", _ports("sent_bytes_total")),
    _counter("server_writes_total", "Writes to sockets.", _ports("writes_total")),
    _counter("server_reading_pauses_total", "Pauses of reading.", _ports("reading_pauses_total")),
    _counter("auth_unauthenticated_total", "Bad or no credentials.", at("guard.unauthenticated")),
    _counter("auth_denied_total", "Calls without a grant.", at("guard.denied")),
    _counter("auth_limited_total", "Calls above a client's rate.", at("guard.limited")),
    _gauge("auth_clients", "Clients whose calls are counted.", at("guard.clients")),
    _counter("http_requests_total", "Pages served.", at("http.requests")),
    _counter("http_refusals_total", "Requests refused.", at("http.refusals")),
    _counter("http_cut_off_total", "Connections cut off.", at("http.cut_off")),
    # -- subscriptions
    _gauge("subscriptions", "Subscriptions, by type.", by_key("type", "subscriptions.types")),
    _gauge("subscription_producers", "Producers.", at("subscriptions.producers")),
    _gauge("subscription_consumers", "Consumers with a stream.", at("subscriptions.consumers")),
    _gauge("subscription_unacked_records", "Not acked yet.", at("subscriptions.unacked")),
    _gauge("subscription_unacked_bytes", "Bytes of them.", at("subscriptions.unacked_bytes")),
    _gauge(
        "subscription_lag_records", "Not acked or delivered yet.", at("subscriptions.lag_records")
    ),
    _gauge("subscription_paused", "Subscriptions at a limit.", at("subscriptions.paused")),
    _gauge("subscription_damaged", "Those that cannot read on.", at("subscriptions.damaged")),
    _gauge("subscription_cache_bytes", "Decoded records kept.", at("subscriptions.cache_bytes")),
    _counter("subscription_delivered_total", "Deliveries.", at("subscriptions.delivered")),
    _counter("subscription_redelivered_total", "Repeated ones.", at("subscriptions.redelivered")),
    _counter("subscription_acked_total", "Acks.", at("subscriptions.acked")),
    _counter("subscription_nacked_total", "Nacks.", at("subscriptions.nacked")),
    _counter("subscription_dead_letters_total", "Dead letters.", at("subscriptions.dead_letters")),
    _counter("subscription_dropped_total", "Given up by a policy.", at("subscriptions.dropped")),
    _counter("subscription_missed_total", "Gone before delivery.", at("subscriptions.missed")),
    _counter("subscription_decoded_total", "Records decoded.", at("subscriptions.decoded")),
    # -- topics without storage
    _counter("unreliable_delivered_total", "Deliveries.", at("subscriptions.unreliable_delivered")),
    _counter("unreliable_dropped_total", "No room.", at("subscriptions.unreliable_dropped")),
    _counter("unreliable_unheard_total", "No reader.", at("subscriptions.unreliable_unheard")),
    _gauge("unreliable_queued_bytes", "Waiting.", at("subscriptions.unreliable_queued_bytes")),
    # -- the schema registry
    _gauge("schema_subjects", "Subjects of schemas.", at("schemas.subjects")),
    _gauge("schema_versions", "Versions of all subjects.", at("schemas.versions")),
    _gauge("schema_topics", "Topics with a subject.", at("schemas.topics")),
    _gauge("schema_stored_bytes", "Schemas and topics' entries.", at("schemas.stored_bytes")),
    _counter("schema_checked_total", "Records looked at.", at("schemas.checked_total")),
    _counter("schema_warned_total", "Taken, do not fit.", at("schemas.warned_total")),
    _counter("schema_refused_total", "Refused, do not fit.", at("schemas.refused_total")),
    _gauge("schema_waiting_records", "Not looked at yet.", at("schemas.waiting_records")),
    _gauge("schema_waiting_bytes", "Bytes of them.", at("schemas.waiting_bytes")),
)
"""All metrics, in the order of the page."""


def metrics_text(facts: Mapping[str, Any]) -> str:
    """Return the text of all metrics."""
    return render(METRICS, facts)
