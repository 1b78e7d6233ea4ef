"""Which failures a job is started again after, how often, and what the log says."""

import logging

import pytest

from headrace.pipeline.errors import DeliveryFailed, LeaseHeld, RecordsLost, RowsChanged
from headrace.pipeline.restarts import RestartPolicy, is_passing, with_restarts

CONNECT_BACK = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org..."
ICEBERG = "org.apache.iceberg.exceptions"


class Job:
    """Fails with each error in turn, then returns."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RuntimeError(CONNECT_BACK), True),
        (DeliveryFailed(), True),
        (TimeoutError(""), True),
        (RuntimeError("[STREAM_FAILED] Query failed: java.io.IOException: Stream closed"), True),
        (RuntimeError("Caused by: java.io.EOFException\n\tat java.base/..."), True),
        (RuntimeError("cimpl.KafkaException: KafkaError{code=_TRANSPORT,val=-195,str=..."), True),
        (RuntimeError("KafkaError{code=TOPIC_AUTHORIZATION_FAILED,val=29}, Stream closed"), False),
        (RuntimeError("headrace.pipeline.errors.BrokerUnavailable: Could not list"), True),
        (RuntimeError("headrace.pipeline.errors.OptionInvalid: x\nStream closed"), False),
        (RuntimeError("Traceback...\nheadrace.pipeline.errors.ReadStalled: t-0: nothing"), True),
        (RecordsLost(), False),
        (RuntimeError("headrace.pipeline.errors.RowsChanged: Replay of batch 3"), False),
        (RuntimeError(f"{CONNECT_BACK}\nheadrace.pipeline.errors.RowsChanged: Replay"), False),
        (RuntimeError("cannot resolve column"), False),
        (RuntimeError(f"{ICEBERG}.RESTException: Error occurred while processing GET"), True),
        (RuntimeError(f"{ICEBERG}.ServiceUnavailableException: overloaded"), True),
        (RuntimeError(f"{ICEBERG}.CommitStateUnknownException: Bad gateway"), True),
        (RuntimeError(f"{ICEBERG}.NotAuthorizedException: Not authorized: token expired"), False),
        (RuntimeError(f"{ICEBERG}.RESTException\nCause: {ICEBERG}.ForbiddenException: no"), False),
        (RuntimeError(f"{ICEBERG}.NoSuchTableException: a.t"), False),
    ],
)
def test_only_what_a_second_try_can_cure_is_tried_again(error, passes):
    assert is_passing(error) is passes


def test_a_worker_that_connects_too_late_does_not_end_a_job(caplog):
    waits = []
    policy = RestartPolicy(restarts_max=3, delay_ms=100, delay_ms_max=150)
    job = Job(RuntimeError(CONNECT_BACK), DeliveryFailed("late"), RuntimeError(CONNECT_BACK))
    with caplog.at_level(logging.WARNING):
        assert with_restarts(job, "stream delays", policy, waits.append) == "done"
    assert waits == [100, 150, 150]
    assert "stream delays failed with a transient error" in caplog.messages[0]
    assert "restart 1 of at most 3" in caplog.messages[0]
    assert "Python worker failed to connect back" in caplog.messages[0]


def test_a_job_is_given_up_after_the_last_restart_and_at_once_where_none_can_help():
    waits = []
    with pytest.raises(DeliveryFailed):
        with_restarts(
            Job(*[DeliveryFailed()] * 3), "x", RestartPolicy(restarts_max=2), waits.append
        )
    assert len(waits) == 2
    for error in (RowsChanged(), LeaseHeld("The job is being run by process 1.")):
        with pytest.raises(type(error)):
            with_restarts(Job(error), "x", RestartPolicy(), waits.append)
    assert len(waits) == 2


class Thrown:
    """What py4j shows of a Java exception."""

    def __init__(self, text, cause=None):
        self._text, self._cause = text, cause

    def toString(self):  # noqa: N802
        return self._text

    def getCause(self):  # noqa: N802
        return self._cause


@pytest.mark.parametrize(("text", "passes"), [("java.io.EOFException", True), ("x.Other", False)])
def test_a_cause_without_a_message_counts_though_the_text_leaves_it_out(text, passes):
    error = RuntimeError("[STREAM_FAILED] Query [id = 1] terminated with exception:  SQLSTATE: X")
    error._origin = Thrown("StreamingQueryException", Thrown("org.SparkException", Thrown(text)))
    assert is_passing(error) is passes
