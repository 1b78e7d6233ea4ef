"""Ctrl-C in a command of Spark jobs, without Spark."""

from __future__ import annotations

import logging
import os
import signal
import threading
from threading import Event, current_thread, main_thread

import click
import pytest
from tests.waiting import wait_until

from headrace.cli import pipeline_interrupts
from headrace.cli.pipeline_interrupts import Interruption
from headrace.cli.progress import watching
from headrace.pipeline.jobs import running
from headrace.pipeline.session import JAVA, JavaProcess


@pytest.fixture(autouse=True)
def _handlers():
    """Those of a program that a terminal started, which a test of a background job has not."""
    own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number, handler in own.items():
        signal.signal(number, handler)


@pytest.fixture
def cancelled(monkeypatch):
    """Set whenever Spark's jobs are cancelled."""
    asked = Event()
    monkeypatch.setattr(running, "cancel_all", asked.set)
    return asked


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_a_job_has_a_thread_of_its_own_with_the_commands_context_and_its_outcome_is_its_own():
    def job():
        assert current_thread() is not main_thread()
        return click.get_current_context().info_name

    interruption = Interruption()
    with click.Context(click.Command("x"), info_name="replay"):
        assert interruption.run(job) == "replay"
    with pytest.raises(ZeroDivisionError):
        interruption.run(interruption.guarded(lambda: 1 / 0))
    assert not interruption.is_wanted()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_error_of_what_was_cancelled_is_the_interruption(cancelled, capsys, number):
    def job():
        interrupt(number)
        assert cancelled.wait(60)
        raise RuntimeError("[SPARK_JOB_CANCELLED]")

    interruption = Interruption()
    with pytest.raises(KeyboardInterrupt):
        interruption.run(interruption.guarded(job))
    assert "stopping; press Ctrl-C again" in capsys.readouterr().err


def test_a_job_that_stops_after_a_chunk_is_not_cancelled_and_its_errors_are_errors(
    cancelled, capsys
):
    interruption = Interruption()

    def job():
        with interruption.after("chunk"):
            interrupt()
            wait_until(interruption._noticed.is_set)
            return interruption.is_wanted()

    assert interruption.run(interruption.guarded(job))
    assert not cancelled.is_set()
    assert "stopping after this chunk" in capsys.readouterr().err

    def failing():
        with interruption.after("chunk"):
            interrupt()
            wait_until(interruption._noticed.is_set)
            raise ZeroDivisionError

    cancelled.clear()
    with pytest.raises(ZeroDivisionError):
        interruption.run(interruption.guarded(failing))
    assert not cancelled.is_set()


def test_the_rest_of_a_job_that_stopped_by_itself_is_not_cancelled(cancelled, monkeypatch):
    """The chunk ends while the message about it is written."""
    interruption, is_past, looked = Interruption(), Event(), Event()
    monkeypatch.setattr(pipeline_interrupts, "say", lambda _: is_past.wait(60))

    def job():
        over = interruption._over
        wait = over.wait
        over.wait = lambda wait_s: looked.set() or wait(wait_s)
        with interruption.after("chunk"):
            interrupt()
            wait_until(interruption._noticed.is_set)
        is_past.set()
        return looked.wait(60)

    assert interruption.run(interruption.guarded(job))
    assert not cancelled.is_set()


def test_the_second_time_java_is_ended(monkeypatch):
    ended = Event()
    monkeypatch.setattr(JAVA, "end", lambda _wait_s: ended.set())
    interruption = Interruption()

    def job():
        with interruption.after("chunk"):
            interrupt()
            wait_until(interruption._noticed.is_set)
            interrupt()
            assert ended.wait(60)
            raise ConnectionError

    with pytest.raises(KeyboardInterrupt):
        interruption.run(interruption.guarded(job))


def test_a_restart_is_not_waited_for(cancelled):
    interruption = Interruption()

    def job():
        interrupt()
        interruption.wait_ms(3_600_000)

    with pytest.raises(KeyboardInterrupt):
        interruption.run(job)


def test_a_signal_that_the_shell_has_the_command_ignore_is_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interruption = Interruption()
        interruption.run(interrupt)
        assert not interruption.is_wanted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupted_progress_bar_keeps_no_process_alive(monkeypatch):
    """The thread behind a bar has begun before the work has."""
    looking = Event()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with watching("tasks", lambda: looking.set() or (0, 0)):
        assert looking.wait(60)
        assert all(one.daemon for one in threading.enumerate() if one.name == "progress")


def test_java_that_starts_once_it_was_ended_is_killed(monkeypatch):
    monkeypatch.setattr(logging, "disable", lambda: None)
    java = JavaProcess()
    java.end()
    assert java.start(["sleep", "60"]).wait(10) == -signal.SIGKILL
