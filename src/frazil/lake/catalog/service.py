"""The catalog: executes the requests of the REST specification on rows and files.

A commit reads the newest metadata, checks the requirements, applies the updates, writes the new
file, and swaps its name in. `docs/internals/catalog.md` has the effect of a crash at each step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID
from zlib import crc32

from frazil.errors import Unavailable
from frazil.lake.catalog.draft import Draft
from frazil.lake.catalog.files import Loaded, MetadataFiles, check_inside, purge
from frazil.lake.catalog.metadata import (
    FORMAT_VERSION_DEFAULT,
    FORMAT_VERSIONS,
    levels,
    new_table,
    path_part,
    skeleton,
)
from frazil.lake.catalog.refusals import (
    OutcomeUnknown,
    Refusal,
    already_exists,
    bad_request,
    commit_failed,
    no_namespace,
    no_table,
)
from frazil.lake.catalog.requirements import check, is_creation
from frazil.lake.catalog.store import Store, Swap, SwapLost
from frazil.lake.catalog.updates import UpgradeFormatVersion
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.lake.catalog.requirements import Requirement
    from frazil.lake.catalog.schemas import Json
    from frazil.lake.catalog.updates import Update

__all__ = ["Catalog", "TableChange"]

LOCKS: Final = 64
"""Commits of tables that share a lock wait for each other."""
ATTEMPTS_MAX: Final = 10
"""The attempts of a commit when other programs swap the metadata first."""


class TableChange(NamedTuple):
    """The requirements and updates of a commit for one table."""

    namespace: str
    name: str
    requirements: Sequence[Requirement]
    updates: Sequence[Update]

    @property
    def table(self) -> str:
        """Return the table's full name."""
        return f"{self.namespace}.{self.name}"


class _Built(NamedTuple):
    """A commit's result for one table before the swap; `new` is `base` if nothing changes."""

    change: TableChange
    base: Loaded | None
    new: Loaded


class Catalog:
    """Namespaces and tables of one catalog. All methods may be called from any thread.

    Args:
        store: the rows.
        file_system: where the warehouse is.
        clock: for times and unique names.
        warehouse: the directory of the tables.
    """

    def __init__(
        self, store: Store, *, file_system: FileSystem, clock: Clock, warehouse: str
    ) -> None:
        self.store = store
        self.warehouse = warehouse
        self._fs = file_system
        self._clock = clock
        self._files = MetadataFiles(file_system=file_system, clock=clock, warehouse=warehouse)
        self._locks = [threading.Lock() for _number in range(LOCKS)]

    def check_location(self, location: str) -> None:
        """Refuse a location outside of the warehouse."""
        check_inside(location, self.warehouse)

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1000

    def _uuid(self) -> str:
        return str(UUID(bytes=self._clock.random_bytes(16), version=4))

    @contextlib.contextmanager
    def _alone(self, tables: Sequence[str]) -> Iterator[None]:
        """Lock the tables against this process's other commits, which would lose the swap."""
        with contextlib.ExitStack() as stack:
            for number in sorted({crc32(table.encode()) % LOCKS for table in tables}):
                stack.enter_context(self._locks[number])
            yield

    # ------------------------------------------------------------------------- tables
    def load(self, namespace: str, name: str) -> Loaded:
        """Return a table's newest metadata."""
        while True:
            location = self.store.location(namespace, name)
            if location is None:
                raise no_table(namespace, name)
            try:
                return self._files.load(location)
            except Refusal:
                # Between the row and its file others may have committed and deleted the file.
                if self.store.location(namespace, name) == location:
                    raise

    def create(
        self,
        namespace: str,
        name: str,
        *,
        schema: Json,
        spec: Json | None,
        order: Json | None,
        location: str | None,
        properties: Mapping[str, str],
        stage: bool,
    ) -> tuple[str | None, Loaded]:
        """Create a table, or with `stage` only return its metadata.

        Returns:
            The location of its metadata, None if it is staged, and the metadata.
        """
        if not self.store.has_namespace(namespace):
            raise no_namespace(namespace)
        if self.store.location(namespace, name) is not None:
            raise already_exists("table already exists", table=f"{namespace}.{name}")
        root = location.rstrip("/") if location else self._new_location(namespace, name)
        self.check_location(root)
        metadata = new_table(
            schema=schema,
            spec=spec,
            order=order,
            location=root,
            properties=properties,
            uuid=self._uuid(),
            now_ms=self._now_ms(),
        )
        if stage:
            return None, Loaded("", b"", metadata)
        loaded = self._files.create(metadata, after=None)
        self._swap([_Built(TableChange(namespace, name, (), ()), None, loaded)])
        return loaded.location, loaded

    def _new_location(self, namespace: str, name: str) -> str:
        """Return a location that no table had before, also after a rename or a drop."""
        given = self.store.namespace_properties(namespace).get("location")
        parts = [self.warehouse, *map(path_part, levels(namespace))]
        above = (given or "/".join(parts)).rstrip("/")
        return f"{above}/{path_part(name)}-{self._clock.random_bytes(4).hex()}"

    def register(
        self, namespace: str, name: str, *, metadata_location: str, overwrite: bool
    ) -> Loaded:
        """Take an existing metadata file as a table of this catalog."""
        loaded = self._files.load(metadata_location)
        self.check_location(str(loaded.metadata["location"]))
        self.check_location(metadata_location)
        with self._alone([f"{namespace}.{name}"]):
            current = self.store.location(namespace, name)
            if current is not None and not overwrite:
                raise already_exists("table already exists", table=f"{namespace}.{name}")
            try:
                self.store.swap([Swap(namespace, name, current, metadata_location)])
            except SwapLost as error:
                raise commit_failed(
                    "another commit has changed the table", table=f"{namespace}.{name}"
                ) from error
        return loaded

    def drop(self, namespace: str, name: str, *, wants_purge: bool) -> None:
        """Drop a table, with its files on request: first the row, so a crash leaves only files."""
        location = self.store.drop(namespace, name)
        if not wants_purge:
            return
        try:
            dropped = self._files.load(location)
        except Refusal as refusal:
            # A table whose metadata is lost can be dropped, but its files are unknown.
            warn("catalog_purge_skipped", table=f"{namespace}.{name}", reason=refusal)
            return
        purge(
            dropped,
            others=self.store.locations(),
            file_system=self._fs,
            warehouse=self.warehouse,
        )

    # ------------------------------------------------------------------------ commits
    def commit(self, changes: Sequence[TableChange]) -> list[Loaded]:
        """Change tables, all or none; durable on return.

        Raises:
            Refusal: nothing was changed.
            OutcomeUnknown: storage failed in the middle; look before trying again.
        """
        names = [change.table for change in changes]
        if len(set(names)) != len(names):
            raise bad_request("table appears twice in one transaction")
        with self._alone(names):
            for _attempt in range(ATTEMPTS_MAX):
                with contextlib.suppress(SwapLost):
                    return self._commit_once(changes)
        raise commit_failed(
            "other programs changed the table again and again",
            tables=",".join(names),
            attempts=ATTEMPTS_MAX,
        )

    def _commit_once(self, changes: Sequence[TableChange]) -> list[Loaded]:
        built = self._build_all(changes)
        changed = [each for each in built if each.new is not each.base]
        self._swap(changed)
        for each in changed:
            if each.base is not None:
                self._files.delete_outgrown(each.base.metadata, each.new.metadata)
        return [each.new for each in built]

    def _build_all(self, changes: Sequence[TableChange]) -> list[_Built]:
        built: list[_Built] = []
        try:
            # One by one: when a table is refused, the files built before it must be discarded.
            built.extend(self._build(change) for change in changes)
        except BaseException:
            self._discard(built)
            raise
        return built

    def _build(self, change: TableChange) -> _Built:
        location = self.store.location(change.namespace, change.name)
        base = None if location is None else self.load(change.namespace, change.name)
        base_location = None if base is None else base.location
        if base is None and not is_creation(change.requirements):
            raise no_table(change.namespace, change.name)
        check(change.requirements, None if base is None else base.metadata, table=change.table)
        start: dict[str, Any] = base.metadata if base else self._start(change)
        draft = Draft(
            start,
            now_ms=self._now_ms(),
            is_new=base is None,
            check_location=self.check_location,
        )
        draft.apply_all(change.updates)
        if base is not None and not draft.changed:
            return _Built(change, base, base)
        new = self._files.create(draft.finish(base_location), after=base_location)
        return _Built(change, base, new)

    def _start(self, change: TableChange) -> Json:
        if not self.store.has_namespace(change.namespace):
            raise no_namespace(change.namespace)
        upgrades = [each for each in change.updates if isinstance(each, UpgradeFormatVersion)]
        version = upgrades[0].format_version if upgrades else FORMAT_VERSION_DEFAULT
        if version not in FORMAT_VERSIONS:
            raise bad_request("format version is not supported", format_version=version)
        return skeleton(format_version=version, uuid=self._uuid(), now_ms=self._now_ms())

    def _swap(self, built: Sequence[_Built]) -> None:
        """Swap names in, or delete the new files if certainly nothing was swapped."""
        swaps = [
            Swap(
                each.change.namespace,
                each.change.name,
                None if each.base is None else each.base.location,
                each.new.location,
            )
            for each in built
        ]
        if not swaps:
            return
        try:
            self.store.swap(swaps)
        except OutcomeUnknown:
            # The rows may name the new files: they must stay.
            raise
        except Unavailable as error:
            self._discard(built)
            # A certain failure: a client takes 503 for an unknown outcome.
            raise commit_failed(f"{error.message}, nothing was changed", **error.details) from error
        except BaseException:
            self._discard(built)
            raise

    def _discard(self, built: Sequence[_Built]) -> None:
        for each in built:
            if each.new is not each.base:
                self._files.discard(each.new)
