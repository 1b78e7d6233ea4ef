"""The errors of the pipeline, of the four kinds in `headrace.errors`.

Invariants: a message names cause, effect and next step; imports nothing heavy.
"""

from __future__ import annotations

from headrace.errors import Fatal, Fenced, Rejected, Retriable


class OptionInvalid(Rejected):
    """An option of the data source or of a job is unknown, missing or contradicts another."""


class RecordsLost(Fatal):
    """Records between two offsets are not in the log any more (retention), or never were."""


class TopicRecreated(RecordsLost):
    """A topic has another id than when its offsets were stored: it was deleted and recreated."""


class RecordUnreadable(Fatal):
    """A record of the log cannot be returned; the message names its partition and offset."""


class ReadStalled(Retriable):
    """The broker sent nothing for too long although the log has more."""


class RowsChanged(Fatal):
    """A replayed micro-batch brought other rows than the first time: it cannot be written once."""


class RowInvalid(Rejected):
    """A row that no record can hold unchanged, such as one with a null header key."""


class DeliveryFailed(Retriable):
    """The broker did not acknowledge a record of the sink."""


class DeliveryInDoubt(Fatal):
    """Which rows of a micro-batch are written already cannot be established any more."""


class LeaseHeld(Retriable):
    """Another process writes this table."""


class TableMoved(Fenced):
    """Somebody else committed these offsets to the table while this round ran."""
