"""Producers that send are there, whether or not they ask for their health."""

from __future__ import annotations

import pytest

from frazil.serve.grpc import calls
from tests.integration.serve.test_publishing import run
from tests.support.few import few

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("run_calls_min", [1, 2])
def test_producers_that_send_keep_their_places(tmp_path, monkeypatch, run_calls_min):
    """A send is a sign of life, taken one by one or in runs: a newcomer is refused, not they."""
    monkeypatch.setattr(calls, "_RUN_CALLS_MIN", run_calls_min)

    async def scene(w):
        first, second = await w.create("a"), await w.create("b")
        target = w.producers._known[first]
        # Both were heard of long ago; then one of them sends.
        target.seen.update({first: -1000.0, second: -1000.0})
        assert await w.send(first, name="a") == 9
        third = await w.create("c")
        assert w.producers.is_known(first)
        assert w.producers.is_known(third)
        assert not w.producers.is_known(second)
        assert (await w.create("d"))[0] == "RESOURCE_EXHAUSTED"

    few(monkeypatch.setattr, PRODUCERS_MAX=2)
    run(tmp_path, scene)
