"""Which topics are uploaded, and what of their producers files keep for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import InvalidRequest, Unavailable
from frazil.log import logged_runs
from frazil.tiers.disk.runs import SentRun, kept_runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.config import Settings
    from frazil.model import TopicSpec
    from frazil.topic import TopicRuntime

__all__ = ["check_objects_option", "has_objects", "runs_to_keep"]


def has_objects(spec: TopicSpec, settings: Settings) -> bool:
    """Tell whether a topic's records are to be in the object store."""
    if settings.objects.store == "none" or spec.partitions or spec.deleted_us:
        return False
    return settings.objects.default if spec.objects is None else spec.objects


def check_objects_option(name: str, options: Mapping[str, object], settings: Settings) -> None:
    """Refuse to upload a topic where there is no store.

    Raises:
        InvalidRequest: if the option asks for it all the same.
    """
    if options.get("objects") and settings.objects.store == "none":
        raise InvalidRequest(
            "a topic with objects needs an object store, set objects.store", topic=name
        )


def runs_to_keep(runtime: TopicRuntime, first: int, end: int) -> list[SentRun]:
    """Return the producers' runs of `[first, end)` that its files keep: those of the log.

    None for topics that are not uploaded: nobody would ask for them.
    """
    journal = runtime.log.journal
    if not has_objects(runtime.state.spec, runtime.settings) or not journal.state.producer_id_last:
        return []
    found = logged_runs(journal.segments, runtime.state.id, first=first, end=end)
    try:
        return kept_runs(
            [
                SentRun(offset, run.records, run.producer, run.epoch, run.sequence)
                for offset, run in found
            ]
        )
    except OSError as error:
        raise Unavailable(
            "the log cannot be read, try again", topic=runtime.name, error=error
        ) from error
