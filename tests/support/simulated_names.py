"""The names of a simulated file system: the visible ones, the durable ones, and what is between.

A change of names is atomic: a rename takes away one name and gives another. Changes are pending
until `sync` of one of their directories. The changes of one name survive a crash in their order,
those of different names in any. Directories are never renamed or removed.
"""

from __future__ import annotations

import errno
import os
import posixpath
from typing import TYPE_CHECKING, NoReturn

from tests.support.simulated_inode import Inode, Survival

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = ["Directory", "NameTree", "Node", "fail"]


class Directory:
    """The names in one directory."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Inode | Directory
# One effect of a change puts a node under a name, or nothing.
_Effect = tuple[Directory, str, Node | None]
_Change = tuple[_Effect, ...]


def fail(code: int, path: str) -> NoReturn:
    """Raise what the operating system would."""
    raise OSError(code, os.strerror(code), path)


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _with_predecessors(changes: list[_Change], chosen: set[int]) -> list[int]:
    """Return the chosen changes and all earlier ones of the same names, in order."""
    needed: set[tuple[int, str]] = set()
    kept: list[int] = []
    for index in range(len(changes) - 1, -1, -1):
        keys = [(id(directory), name) for directory, name, _ in changes[index]]
        if index in chosen or not needed.isdisjoint(keys):
            needed.update(keys)
            kept.append(index)
    kept.reverse()
    return kept


class NameTree:
    """All directories. Not thread-safe: the file system locks around it."""

    def __init__(self) -> None:
        self.directories: dict[str, Directory] = {"/": Directory()}
        self._changes: list[_Change] = []

    def directory(self, path: str) -> Directory:
        """Return the directory at `path` or raise ENOENT."""
        directory = self.directories.get(path) or self.directories.get(posixpath.normpath(path))
        if directory is None:
            fail(errno.ENOENT, path)
        return directory

    def locate(self, path: str) -> tuple[Directory, str]:
        """Return the directory of `path` and its name there; the name need not exist."""
        parent, _, name = path.rpartition("/")
        directory = self.directories.get(parent or "/")
        if directory is None or name in {"", ".", ".."}:
            parent, name = posixpath.split(posixpath.normpath(path))
            directory = self.directory(parent)
        return directory, name

    def inode(self, path: str) -> Inode:
        """Return the file at `path` or raise ENOENT."""
        directory, name = self.locate(path)
        node = directory.names.get(name)
        if not isinstance(node, Inode):
            fail(errno.ENOENT, path)
        return node

    def files(self) -> Iterator[tuple[str, Inode]]:
        """Give all visible files with their paths."""
        for path, directory in self.directories.items():
            for name, node in directory.names.items():
                if isinstance(node, Inode):
                    yield posixpath.join(path, name), node

    def change(self, *effects: _Effect) -> None:
        """Change the visible names at once; durable after `sync`."""
        for directory, name, node in effects:
            _put(directory.names, name, node)
        self._changes.append(effects)

    def make(self, path: str) -> None:
        """Make a directory and its missing parents."""
        path = posixpath.normpath(path)
        if path in self.directories:
            return
        parent, name = posixpath.split(path)
        self.make(parent)
        if name in self.directories[parent].names:
            fail(errno.EEXIST, path)
        made = Directory()
        self.change((self.directories[parent], name, made))
        self.directories[path] = made

    def sync(self, directory: Directory) -> None:
        """Make the names of a directory durable, and with a rename also its other name."""
        changes = self._changes
        chosen = {
            index
            for index, change in enumerate(changes)
            if any(changed is directory for changed, _, _ in change)
        }
        if not chosen:
            return
        applied = _with_predecessors(changes, chosen)
        for index in applied:
            for changed, name, node in changes[index]:
                _put(changed.durable, name, node)
        gone = set(applied)
        self._changes = [change for index, change in enumerate(changes) if index not in gone]

    def crashed(self, random: Random, *, names: Survival, data: Survival) -> NameTree:
        """Return the names and files that a power loss may leave."""
        survivors = self._survivors(random, names)
        twin = NameTree()
        # Paths are in the order of their making, so a parent comes before its children.
        for path, directory in self.directories.items():
            clone = twin.directories.get(path)
            if clone is None:
                continue
            for name, node in survivors.get(id(directory), directory.durable).items():
                if isinstance(node, Inode):
                    clone.names[name] = node.crashed(random, data)
                else:
                    clone.names[name] = twin.directories[posixpath.join(path, name)] = Directory()
            clone.durable = clone.names.copy()
        return twin

    def _survivors(self, random: Random, survival: Survival) -> dict[int, dict[str, Node]]:
        """Return the names of those directories that differ from their durable state."""
        changes = self._changes
        if not changes or survival == "nothing":
            return {}
        if survival == "everything":
            kept = list(range(len(changes)))
        elif survival == "prefix":
            kept = list(range(random.randint(0, len(changes))))
        else:
            chance = random.choice((0.2, 0.5, 0.8))
            chosen = {index for index in range(len(changes)) if random.random() < chance}
            kept = _with_predecessors(changes, chosen)
        survivors: dict[int, dict[str, Node]] = {}
        for index in kept:
            for directory, name, node in changes[index]:
                if id(directory) not in survivors:
                    survivors[id(directory)] = directory.durable.copy()
                _put(survivors[id(directory)], name, node)
        return survivors

    def killed(self) -> NameTree:
        """Return a copy with the same pending changes: the operating system lives on."""
        twin = NameTree()
        directories = {id(self.directories["/"]): twin.directories["/"]}
        inodes: dict[int, Inode] = {}

        def twin_of(node: Node) -> Node:
            if isinstance(node, Inode):
                if id(node) not in inodes:
                    inodes[id(node)] = node.killed()
                return inodes[id(node)]
            return directories.setdefault(id(node), Directory())

        for path, directory in self.directories.items():
            clone = directories.setdefault(id(directory), Directory())
            twin.directories[path] = clone
            clone.names = {name: twin_of(node) for name, node in directory.names.items()}
            clone.durable = {name: twin_of(node) for name, node in directory.durable.items()}
        twin._changes = [
            tuple(
                (directories[id(directory)], name, None if node is None else twin_of(node))
                for directory, name, node in change
            )
            for change in self._changes
        ]
        return twin
