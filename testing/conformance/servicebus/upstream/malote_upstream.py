"""A pytest plugin: selects the tests that need a service, except excluded ones, and records the result of each."""

import os
from pathlib import PurePath

import pytest


@pytest.fixture(scope="session")
def test_proxy():
    """The recording proxy, which is not used."""


def name_of(nodeid):
    """`test_queues::test_x`, with parameters only if there are several."""
    path, *_, function = nodeid.split("::")
    return f"{PurePath(path).stem}::{function.removesuffix('[pyamqp]')}"


def pytest_collection_modifyitems(config, items):
    left_out = os.environ["MALOTE_LEFT_OUT"].split()

    def wanted(item):
        live = item.get_closest_marker("liveTest") or getattr(item.function, "needs_service", False)
        return live and name_of(item.nodeid) not in left_out

    others = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    config.hook.pytest_deselected(items=others)


def pytest_runtest_logreport(report):
    # The workers of xdist report to the main process. Before and after a test only failures count.
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    with open(os.environ["MALOTE_OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(f"{report.outcome} {name_of(report.nodeid)}\n")
