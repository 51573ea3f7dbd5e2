"""Where registered objects lie: noted in the metadata, so that a changed setting is noticed.

With another root a broker would go on uploading there: its history would lie in two places, and
neither could be restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest, Unavailable
from frazil.metadata import Transaction
from frazil.objects.places import place_of
from frazil.telemetry import event

if TYPE_CHECKING:
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.descriptor import Descriptor
    from frazil.objects.store import ObjectStore
    from frazil.topic import Instance

__all__ = ["PLACE_KEY", "check_place"]

PLACE_KEY: Final = "/objects-place"


def check_place(engine: Instance, catalog: ObjectCatalog, store: ObjectStore) -> None:
    """Note where objects lie; if that is not where they lay, look whether they were moved.

    Raises:
        InvalidRequest: the settings name a place that has not the registered objects.
        Unavailable: the place was changed, and the store cannot be asked.
    """
    settings = engine.settings.objects
    bucket, prefix = place_of(settings)
    now = f"{settings.store}:{bucket}/{prefix}"
    row = engine.stores.shared.get(PLACE_KEY)
    before = None if row is None else row.value.decode()
    if before == now:
        return
    try:
        _check_moved(catalog, store, now, before)
    except Unavailable:
        if before is not None:
            raise
        # Nothing says that it was changed; the next life looks again.
        return
    requires = engine.ownership.requires()
    engine.stores.shared.commit(Transaction(puts={PLACE_KEY: now.encode()}, requires=requires))
    event("objects_place", place=now, before=before)


def _check_moved(catalog: ObjectCatalog, store: ObjectStore, now: str, before: str | None) -> None:
    for descriptor in _sample(catalog):
        found = store.head(descriptor.key)
        if found is None or found.size != descriptor.size:
            raise InvalidRequest(
                "the object store has not the objects that were uploaded: set objects.store and "
                "objects.root back, or copy all objects to the new place first",
                setting="objects.root",
                place=now,
                place_before=before or "unknown",
                key=descriptor.key,
            )


def _sample(catalog: ObjectCatalog) -> list[Descriptor]:
    """Return the newest object that is registered, if there is any: one request tells enough."""
    known = [each for picture in catalog.topics().values() for each in picture.descriptors[-1:]]
    return sorted(known, key=lambda each: each.created_us)[-1:]
