"""What a sample of a group's lag keeps."""

from headrace.broker.services.group_lags import PARTITIONS_BITS, PARTITIONS_MAX, LagPart, packed


def test_partitions_that_are_too_many_to_count_add_no_records():
    for partitions, kept in ((0, 0), (65_535, 65_535), (65_536, 65_535), (200_000, 65_535)):
        value = packed(LagPart(7, partitions))
        assert (value >> PARTITIONS_BITS, value & PARTITIONS_MAX) == (7, kept)
