"""A backup over the HTTP port of a real broker: only who administrates the cluster may."""

from __future__ import annotations

import pytest

from tests.integration.serve.test_subscription_http import World, run
from tests.unit.serve.auth.world import ACCESS

pytestmark = pytest.mark.integration


def test_a_backup_needs_an_administrator(tmp_path):
    """Readers, writers and administrators of one namespace are refused; an administrator is not."""

    async def work(world: World):
        for subject in ("reader", "writer", "elsewhere", "nothing"):
            status, _answer = await world.post({"call": "backup"}, subject=subject)
            assert status == 403
        status, _answer = await world.post({"call": "backup"})
        assert status == 401
        status, answer = await world.post({"call": "backup"}, subject="admin")
        # The call is allowed; this broker has no store.
        assert (status, answer["error"]["code"]) == (400, "invalid")
        assert "objects.store" in answer["error"]["message"]

    run(tmp_path, work, access=ACCESS)


def test_a_backup_is_made_by_the_broker(tmp_path):
    """What is durable is uploaded first; the answer has the key of the backup in the store."""
    (tmp_path / "store").mkdir()

    async def work(world: World):
        status, answer = await world.post({"call": "backup"})
        assert status == 200
        assert answer["result"]["uploaded"] == {"/default/orders": 10}
        assert (tmp_path / "store" / answer["result"]["key"]).is_file()

    store = {"objects.store": "fs", "objects.root": str(tmp_path / "store")}
    run(tmp_path, work, **store)
