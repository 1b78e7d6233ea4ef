"""The writers of the data source `headrace`: rows of a DataFrame become records of topics.

Responsibilities: the methods that Spark calls, and in which process. `rows.py` converts rows,
`delivery.py` delivers them exactly once. Spark pickles a writer to its workers: it carries options
only.

Relies on this behaviour of Spark 4.1: a writer is created for each execution of a micro-batch, so a
value created with it identifies the run; all attempts of all its tasks get a copy. `commit` runs in
the driver after all tasks and before the batch is committed to the checkpoint, for a stream in
another writer that learns of the run only from the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace.pipeline.delivery import TaskDelivery, TaskReport, commit_batch
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.fetch import use_core
from headrace.pipeline.rows import check_columns, rows_of
from headrace.pipeline.written import WriteIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from headrace.pipeline.options import SinkOptions

_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass
class RowsWritten(WriterCommitMessage):
    """One task's result."""

    report: TaskReport


class BatchWriter(DataSourceArrowWriter):
    """A bounded write: once per `writeId`, which is generated for each job unless set."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        check_columns(schema, options)
        if overwrite:
            raise OptionInvalid(
                'mode("overwrite") is not supported: a topic is append-only, so the rows'
                ' would be added to the existing ones. Write with mode("append"); to replace'
                " a topic's records, delete and recreate it first."
            )
        self.options = options
        self.run = _new_run()
        self.write_id = options.write_id or self.run

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one attempt of one task."""
        context = _task_context()
        identity = WriteIdentity(
            self.write_id, 0, self.run, context.partitionId(), context.attemptNumber()
        )
        return RowsWritten(deliver(iterator, self.options, identity))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Complete the write: all tasks have finished."""
        complete(messages, self.options)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's write: once per micro-batch of the query, across kills and replays."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options
        self.run = _new_run()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write one attempt of one task of one micro-batch."""
        context = _task_context()
        query = context.getLocalProperty(_QUERY_PROPERTY)
        batch = context.getLocalProperty(_BATCH_PROPERTY)
        assert query is not None, "Spark names the query in each task"
        assert batch is not None, "Spark names the batch in each task"
        identity = WriteIdentity(
            query, int(batch), self.run, context.partitionId(), context.attemptNumber()
        )
        return RowsWritten(deliver(iterator, self.options, identity))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Complete the micro-batch: all its tasks have finished, and Spark commits it next."""
        complete(messages, self.options)


def deliver(batches: Iterator[Any], options: SinkOptions, identity: WriteIdentity) -> TaskReport:
    """Write a task's rows exactly once. A task without rows sends no requests."""
    pieces = rows_of(batches, options)
    first = next(pieces, None)
    if first is None:
        return TaskReport(identity)
    use_core()
    from headrace.pipeline.target import KafkaTopics

    with KafkaTopics(options) as topics:
        delivery = TaskDelivery(topics, identity, at_least_once=options.at_least_once)
        for rows in chain((first,), pieces):
            delivery.send(rows)
        return delivery.finish()


def complete(messages: list[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Complete what the tasks could not decide alone, and mark the batch done."""
    from headrace.pipeline.target import KafkaTopics

    reports = [each.report for each in messages if isinstance(each, RowsWritten)]
    assert len(reports) == len(messages), "every task of a finished job reports"
    with KafkaTopics(options) as topics:
        commit_batch(topics, reports, at_least_once=options.at_least_once)


def _new_run() -> str:
    return uuid4().hex[:8]


def _task_context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a writer runs inside a task"
    return context
