"""The pipeline's errors, in the four kinds of `headrace.errors`.

Invariants: a message names cause, effect and next step; imports nothing heavy.
"""

from __future__ import annotations

from headrace.errors import Fatal, Fenced, Rejected, Retriable


class OptionInvalid(Rejected):
    """An option of the data source or of a job is unknown, missing or contradicts another."""


class RecordsLost(Fatal):
    """Records between two offsets are no longer in the log (retention), or never were."""


class TopicRecreated(RecordsLost):
    """The topic's id differs from the stored one: it was deleted and recreated."""


class RecordUnreadable(Fatal):
    """A record cannot be returned; the message names its partition and offset."""


class ReadStalled(Retriable):
    """The broker sent nothing within the time-out although the log has more records."""


class RowsChanged(Fatal):
    """A replayed micro-batch produced different rows, so it cannot be written exactly once."""


class RowInvalid(Rejected):
    """No record can hold this row unchanged, for example because a header key is null."""


class DeliveryFailed(Retriable):
    """The broker did not acknowledge a record of the sink."""


class DeliveryInDoubt(Fatal):
    """It can no longer be determined which rows of a micro-batch are written."""


class LeaseHeld(Retriable):
    """Another process is writing to this table."""


class TableMoved(Fenced):
    """Another writer committed these offsets to the table during this round."""
