"""What stored records of both new group protocols have in common."""

import pytest

from headrace.coordination.kit.stored_bytes import StoredReader
from headrace.coordination.member_groups.encodings import (
    read_epochs,
    read_names,
    read_numbers,
    write_epochs,
    write_key,
    write_numbers,
)
from headrace.errors import RecordInvalid


def test_a_key_holds_its_type_a_group_and_perhaps_a_member():
    assert write_key(3, "g") == b"\0\x03\0\x01g"
    assert write_key(5, "g", "m") == b"\0\x05\0\x01g\0\x01m"
    assert read_names(StoredReader(b"\0\x01g\0\x01m"), has_member=True) == ("g", "m")
    assert read_names(StoredReader(b"\0\x01g"), has_member=False) == ("g", None)


def test_bytes_after_a_key_are_refused():
    with pytest.raises(RecordInvalid):
        read_names(StoredReader(b"\0\x01g\0\x01m"), has_member=False)


def test_partitions_are_stored_with_the_epochs_at_which_they_were_assigned():
    epochs = {7: 3, 2: 5}
    data = write_epochs(epochs)
    assert data.startswith(write_numbers((2, 7))), "sorted"
    assert read_epochs(StoredReader(data), 9) == epochs


def test_partitions_that_were_stored_without_epochs_have_the_members():
    data = write_numbers((2, 7)) + b"\0"
    assert read_numbers(StoredReader(data)) == (2, 7)
    assert read_epochs(StoredReader(data), 9) == {2: 9, 7: 9}


def test_other_numbers_of_partitions_and_epochs_are_refused():
    epochs = write_numbers((1, 2, 3))
    data = write_numbers((2, 7)) + b"\x01\0" + bytes([len(epochs)]) + epochs
    with pytest.raises(RecordInvalid, match="different numbers"):
        read_epochs(StoredReader(data), 9)
