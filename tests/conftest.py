"""What all tests share: a real cluster, and which warnings of others are not ours to mend."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import inspect
import logging
import os
import re
import signal
import sys
import warnings

import pytest
from pytest_rerunfailures import _restore_suspended_finalizers

from headrace.runtime import compiled

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    # With it, every broker and command that a test starts would compile all its modules anew.
    sys.dont_write_bytecode = False

if os.environ.get(compiled.SWITCH, "0") != "0":
    compiled.use()  # before anything imports the plain modules: all tests run on the compiled core

from tests import open_transports
from tests.cluster.fixtures import (  # noqa: F401 - fixtures are found by their names
    cluster_parts,
    make_cluster,
    shared_cluster,
    shared_zookeeper,
)

from headrace.broker.coordinators.coordinator_shard import CoordinatorShard

CoordinatorShard.validates = True
OTHERS_WARNINGS = (
    # kafka-python 3.0 reads its schemas by a call that Python 3.11 and 3.12 call old.
    "ignore:(read|open)_text is deprecated:DeprecationWarning",
)


if importlib.util.find_spec("pyspark") is None:
    # `make setup` brings the broker and its tests; `make test` brings Spark, too.
    collect_ignore = ["pipeline", "unit/pipeline", "property/pipeline"]

GROUPS = {
    "jobs": "pipeline/test_(altered|catalogs|object|other|schedulers|second_copy_in|tiered)",
    "Spark": "pipeline/",  # share a session
    "clusters": "cluster/|contract/",  # share a ZooKeeper and bookies
    "clients": "integration/test_(clients|compiled|foreign|java|streams|versions)",
    "brokers": "integration/",  # share a broker
    "attacks": "blackbox/|soak/|wire/",
}
"""Tests in real time, with real processes, sockets and disks. Those of a group, the first whose
pattern begins the name, run one after another in one process (decision 17)."""
LONG_FIRST = ("crash", "simulation", "documents", "property", "upgrade", "unit")
"""Folders of tests that compute; the others, all short, come last."""
COMPUTING_NICE = 10
ONE_CHANCE = ("test_restart.py", "test_full_disk.py", "test_bookkeeper_failures.py")
"""Not repeated: they show that no acknowledged record is lost, and a loss need not occur twice."""


@pytest.fixture(autouse=True)
def own_log_level():
    """Commands that run in a test's process quieten the log, for good."""
    logger = logging.getLogger("headrace")
    level = logger.level
    yield
    logger.setLevel(level)


def pytest_collect_file(file_path, parent):
    """Load the profile before the first module that uses Hypothesis, whose import takes long."""
    if file_path.match("test_*.py") and (
        "property" in file_path.parts or b"hypothesis" in file_path.read_bytes()
    ):
        load_profile(parent.config.option.markexpr == "long")


@functools.cache
def load_profile(is_long):
    """The same examples on every machine, in CI or not; `-m long` draws others each time."""
    from hypothesis import settings

    # How long an example takes says how busy the machine is, not what the example shows: the
    # profile for CI has no deadline.
    ci = settings.get_profile("ci")
    settings.register_profile("headrace", ci, derandomize=not is_long)
    settings.load_profile("headrace")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep modules and collected tests, a million objects that stay to the end, from the garbage
    collector: to look at them took an eighth of the time of tests that compute."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _turn_of(_group_of(item.nodeid)))  # stable: modules stay whole
    if config.getoption("reruns", None) is None:  # a mark would overrule `--reruns`
        repeat_once(items)


def repeat_once(items):
    """Run a failed test in real time once more, and report it (docs/decisions/0015)."""
    for item in items:
        if _group_of(item.nodeid) in GROUPS and item.path.name not in ONE_CHANCE:
            item.add_marker(pytest.mark.flaky(reruns=1))


def _group_of(nodeid):
    """What one process runs in order: a group of real-time tests, else a module."""
    names = (group for group, start in GROUPS.items() if re.match(f"tests/({start})", nodeid))
    return next(names, nodeid.split("::")[0])


def _turn_of(group):
    """Sorts groups and modules: what takes long begins early, so that none is alone at the end."""
    if group in GROUPS:
        return 0, list(GROUPS).index(group)
    folder = group.split("/")[1]
    return 1, LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class InGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return _group_of(nodeid)

    config.option.loadscopereorder = False  # keep our order, not the number of tests
    return InGroups(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """An async test runs in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


def pytest_runtest_setup(item):
    """Tests that compute give way to the groups beside them."""
    collect_what_failed(item.config)  # a second run begins
    if getattr(item, "execution_count", 1) > 1:
        end_what_its_module_shares(item)
    gives_way = _group_of(item.nodeid) not in GROUPS
    if gives_way and "PYTEST_XDIST_WORKER" in os.environ:
        os.setpriority(os.PRIO_PROCESS, 0, COMPUTING_NICE)


def end_what_its_module_shares(item):
    """A second run has its own: what the first one left there, such as a topic of the same name,
    does not fail it. What is made on something of the session's is of the session, too."""
    _restore_suspended_finalizers(item)  # rerunfailures took them from the stack for the first run
    item.session._setupstate.teardown_exact(item.session)  # the session's go on


FAILED = pytest.StashKey[bool]()
"""Set from a failure until what it left open has been collected."""


LEFT_OPEN = "connections left open"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.config.stash[FAILED] = True
    if left := open_transports.taken():
        report.sections.append((LEFT_OPEN, "\n".join(left)))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    done = yield
    getattr(item, "_rerun_condition_excinfos", {}).clear()  # rerunfailures keeps them for ever
    collect_what_failed(item.config)
    return done


def collect_what_failed(config):
    """What a failed test left open belongs to it: no other test, and no second run of it, fails
    for the ResourceWarning that the garbage collector gives at some later time."""
    if not config.stash.get(FAILED, False):
        return
    config.stash[FAILED] = False
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)  # they hold the frames, and the frames what they opened
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def pytest_terminal_summary(terminalreporter):
    """Who left connections open; and each first failure, whole: a fault of the test, or ours."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for title, text in getattr(report, "sections", ()):
                if title == LEFT_OPEN:
                    terminalreporter.write_line(f"{LEFT_OPEN} by {report.nodeid}: {text}")
    unsteady = terminalreporter.stats.get("rerun", ())
    if unsteady:
        terminalreporter.section("failed, and run once more")
    for report in unsteady:
        terminalreporter.write_sep("_", report.nodeid)
        terminalreporter.write_line(str(report.longrepr))


def pytest_configure(config):
    # A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    open_transports.watch()
    for line in OTHERS_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
