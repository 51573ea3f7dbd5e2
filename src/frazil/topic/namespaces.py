"""Which namespaces there are: those at boot, those made over the network, those with a topic in them.

Programs make topics without asking for a namespace first. What the engine makes by itself, as the
topics of dead letters are, does not bring a namespace into being.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.model import full_topic_name
from frazil.topic.states import StateTag

if TYPE_CHECKING:
    from frazil.topic.instance import Instance

__all__ = ["has_namespace_for"]


def has_namespace_for(engine: Instance, topic: str) -> bool:
    """Tell whether the namespace of a topic's name exists. For any thread; it never waits.

    A bare name is in the default namespace: policies were stored with such names once.

    Raises:
        InvalidRequest: if no topic can have this name.
    """
    namespace = full_topic_name(topic).split("/", 2)[1]
    if namespace in engine.settings.serve.namespaces_at_boot:
        return True
    values = engine.log.journal.state.values
    if (int(StateTag.NAMESPACE), namespace) in values:
        return True
    names = [*(runtime.name for runtime in engine.runtimes), *list(engine.unusable)]
    return any(name.startswith(f"/{namespace}/") for name in names)
