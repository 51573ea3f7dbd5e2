"""What all suites share: profiles of hypothesis, who runs what, what repeats a run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import PurePath

import pytest
from hypothesis import HealthCheck, Verbosity, settings
from xdist.scheduler import LoadScopeScheduling

from tests.support.log_limits import set_log_limits
from tests.support.objects_limits import set_objects_limits
from tests.support.simulated_fs import SimulatedCrash
from tests.support.tier_limits import set_tier_limits

# Random on purpose: a run that always tries the same examples finds nothing new. The blob that
# hypothesis prints repeats a failure, so nothing is lost by it.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("ci"), max_examples=2000)
settings.register_profile("debug", settings.get_profile("ci"), verbosity=Verbosity.verbose)
settings.load_profile(os.environ.get("FRAZIL_TEST_PROFILE", "ci"))

# A shell starts background jobs with SIGINT ignored, and children inherit that: the tests that
# send Ctrl-C to a child would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


SPARK_TESTS = ("tests/integration/lake/", "tests/contract/test_lake_table.py")
WITH_WORKERS = {"test_kills_spark", "test_programs_spark", "test_worker", "test_wiped_and_wide"}
"""Those of them that wait for processes of their own, and so go to another process."""
WITH_SERVERS = ("tests/contract/test_object_store.py", "tests/contract/test_metadata_store.py")
"""Each of their servers is named in the brackets of its tests, and is started once."""


PROCESSES = "tests/integration/serve/test_protocol_"
"""Tests of these files share a process, that of most files with all others of them."""


@pytest.fixture(autouse=True)
def _default_limits():
    """Set the constants of the tiers and the log back after a test that made them smaller."""
    yield
    set_objects_limits()
    set_tier_limits()
    set_log_limits()


class FewSessions(LoadScopeScheduling):
    """Gives a test to a free process, but all that share a session or a server to one process.

    To start Spark, or an object store, takes longer than most tests that use it.
    """

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        if path == "tests/integration/test_doctor_objects.py":
            return path
        if path in WITH_SERVERS:
            return f"{path} {nodeid.partition('[')[2].partition('-')[0].rstrip(']')}"
        if path.startswith(PROCESSES):
            return path
        if not path.startswith(SPARK_TESTS):
            return nodeid
        return "spark, processes" if PurePath(path).stem in WITH_WORKERS else "spark, tables"


def pytest_xdist_make_scheduler(config, log):
    """Hand out tests in the way above, whatever `--dist` says."""
    return FewSessions(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Start what takes long before the rest, whatever order the seed gave: the rest fills up."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_sessionstart():
    """Leave the last words of a dead machine unreported.

    After a simulated crash the database's connection is never closed by the product; the collector
    closes it at some later time, in whichever test runs then, and every write of it is refused.
    """
    report = sys.unraisablehook

    def report_the_living(unraisable):
        if not isinstance(unraisable.exc_value, SimulatedCrash):
            report(unraisable)

    sys.unraisablehook = report_the_living


def pytest_report_header(config):
    """Name the profile and the seed of the order, also where quiet output hides it."""
    seed = config.getoption("randomly_seed", None)
    profile = os.environ.get("FRAZIL_TEST_PROFILE", "ci")
    return f"hypothesis profile={profile} order seed={seed}"


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Print after a failure what repeats the order of the tests."""
    if exitstatus:
        seed = config.getoption("randomly_seed", None)
        terminalreporter.write_line(f"repeat this order with: --randomly-seed={seed}")
