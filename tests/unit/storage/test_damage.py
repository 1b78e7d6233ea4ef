"""Damaged folders: torn tails are cut, damage to what was durable is reported, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import DataCorrupt, FormatUnsupported, HeadraceError
from headrace.storage.files.format import FRAME_HEAD, decode_folder, decode_frame
from headrace_verify.crash.model_disk import Image, ModelDisk
from headrace_verify.crash.scenario import abandon, open_store

Content = dict[int, bytes]


class Recording:
    """A folder as a kill leaves it, with its WAL's frames and what each of them made durable."""

    def __init__(self) -> None:
        self.image: Image
        self.wal = -1
        self.frames: list[Any] = []
        self.after: list[Content] = []
        """What the ledgers hold when the first n frames count."""


async def _record() -> Recording:
    disk = ModelDisk()
    store = await open_store(disk)
    recording = Recording()
    before = store._commit.next_sequence
    state: Content = {}
    recording.after.append({})
    ledgers = [await store.create() for _ in range(3)]
    for ledger in ledgers:
        state[ledger] = b""
        recording.after.append(dict(state))
    for turn in range(4):
        completion: Any = None
        for ledger in ledgers[: 1 + turn % 3]:
            data = bytes([65 + turn]) * (20 + 9 * turn)
            _, completion = store.append(ledger, [data], len(data), None)
            state[ledger] += data
        await completion.wait()
        recording.after.append(dict(state))
    await abandon(store)
    recording.image = disk.image()
    number, recording.wal = max(
        (int(name[:-4], 16), inode)
        for name, inode in disk.names["data/wal"].items()
        if any(disk.inodes[inode])
    )
    salt = decode_folder(bytes(disk.inodes[disk.names["data"]["format"]]), "format")
    view = memoryview(bytes(disk.inodes[recording.wal]))
    at = 0
    while True:
        frame = decode_frame(view, at, salt, number) or decode_frame(
            view, -(-at // 512) * 512, salt, number
        )
        if frame is None:
            break
        assert frame.sequence == before + len(recording.frames)
        recording.frames.append(frame)
        at = frame.end
    assert len(recording.frames) == 7
    return recording


def _with(image: Image, inode: int, content: bytes) -> Image:
    inodes = list(image.inodes)
    inodes[inode] = content
    return Image(inodes, image.names)


async def _contents(image: Image) -> Content:
    store = await open_store(ModelDisk(image))
    found = {
        info.ledger: bytes(store.read_cached(info.ledger, 0, 1 << 30) or b"")
        for info in store.list()
    }
    await abandon(store)
    return found


async def test_a_wal_that_ends_at_any_byte_gives_whole_groups_up_to_there():
    recording = await _record()
    wal = recording.image.inodes[recording.wal]
    for size in range(recording.frames[-1].end + 1):
        whole = sum(frame.end <= size for frame in recording.frames)
        found = await _contents(_with(recording.image, recording.wal, wal[:size]))
        assert found == recording.after[whole], f"cut at {size}"


async def test_a_garbled_byte_in_a_frame_is_reported_if_it_was_durable_and_cut_if_it_was_last():
    recording = await _record()
    wal = recording.image.inodes[recording.wal]
    for at in range(recording.frames[-1].end):
        garbled = bytearray(wal)
        garbled[at] ^= 0x5A
        image = _with(recording.image, recording.wal, bytes(garbled))
        hit = [n for n, frame in enumerate(recording.frames) if frame.start <= at < frame.end]
        if not hit:
            assert await _contents(image) == recording.after[-1], f"padding at {at}"
        elif hit[0] == len(recording.frames) - 1:
            assert await _contents(image) == recording.after[-2], f"last frame at {at}"
        else:
            with pytest.raises(DataCorrupt, match="acknowledged data is corrupt") as caught:
                await _contents(image)
            frame = recording.frames[hit[0]]
            assert caught.value.fields["sequence"] == frame.sequence
            assert caught.value.fields["path"].endswith(".wal")


async def test_every_bit_of_the_last_frame_is_covered_by_its_checksum():
    recording = await _record()
    wal = recording.image.inodes[recording.wal]
    last = recording.frames[-1]
    for bit in range(last.start * 8, last.end * 8):
        flipped = bytearray(wal)
        flipped[bit // 8] ^= 1 << bit % 8
        image = _with(recording.image, recording.wal, bytes(flipped))
        assert await _contents(image) == recording.after[-2], f"bit {bit}"


async def test_a_frame_of_an_earlier_life_of_the_file_is_no_data():
    recording = await _record()
    wal = recording.image.inodes[recording.wal]
    last = recording.frames[-1]
    salt = 0x5EED5A17
    number = int.from_bytes(wal[last.start + 16 : last.start + 24], "little")
    view = memoryview(wal)
    assert decode_frame(view, last.start, salt, number) is not None
    assert decode_frame(view, last.start, salt, number + 1) is None
    assert decode_frame(view, last.start, salt + 1, number) is None


async def test_a_payload_that_looks_like_frames_is_only_a_payload():
    """Somebody stores copies of WAL files as messages, then the tail is torn."""

    disk = ModelDisk()
    store = await open_store(disk)
    ledger = await store.create()
    fake = FRAME_HEAD.pack(b"HRWF", 0, 0, 0, 2, 99, 99)
    for _ in range(3):
        _, completion = store.append(ledger, [fake * 5], len(fake) * 5, None)
        await completion.wait()
    await abandon(store)
    assert await _contents(disk.image()) == {ledger: fake * 15}


async def _closed_folder() -> tuple[ModelDisk, Content]:
    disk = ModelDisk()
    store = await open_store(disk)
    first, second = await store.create(), await store.create()
    _, completion = store.append(first, [b"first"], 5, None)
    _, completion = store.append(second, [b"second"], 6, None)
    await completion.wait()
    await store.seal(second, b"the footer")
    await store.close()
    return disk, {first: b"first", second: b"second"}


@pytest.mark.parametrize("name", ["checkpoint", "format"])
async def test_every_bit_of_a_small_file_is_covered(name):
    disk, _content = await _closed_folder()
    image = disk.image()
    inode = image.names["data"][name]
    content = image.inodes[inode]
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((DataCorrupt, FormatUnsupported)):
            await _contents(_with(image, inode, bytes(flipped)))
    for size in range(len(content)):
        with pytest.raises((DataCorrupt, FormatUnsupported)):
            await _contents(_with(image, inode, content[:size]))


async def test_a_flipped_bit_in_a_footer_is_never_served():
    disk, content = await _closed_folder()
    image = disk.image()
    (inode,) = (
        inode
        for names in image.names.values()
        for name, inode in names.items()
        if name.endswith(".footer")
    )
    sealed = max(content)
    footer = image.inodes[inode]
    for bit in range(len(footer) * 8):
        flipped = bytearray(footer)
        flipped[bit // 8] ^= 1 << bit % 8
        store = await open_store(ModelDisk(_with(image, inode, bytes(flipped))))
        assert store.list()[-1].footer is None
        with pytest.raises(DataCorrupt, match="footer"):
            await store.recover(sealed)
        assert bytes(store.read_cached(sealed, 0, 100) or b"") == content[sealed]
        await abandon(store)


async def test_damage_to_a_wal_that_the_checkpoint_covers_is_harmless():
    disk = ModelDisk()
    store = await open_store(disk)
    ledger = await store.create()
    for data in (b"covered", b"covered too"):
        _, completion = store.append(ledger, [data], len(data), None)
        await completion.wait()
    await store._maintenance.checkpoint()
    covered_until = store._commit._wal.offset
    _, completion = store.append(ledger, [b"beyond"], 6, None)
    await completion.wait()
    await abandon(store)
    image = disk.image()
    (inode,) = (
        inode
        for inode in image.names["data/wal"].values()
        if image.inodes[inode].startswith(b"HRWF")
    )
    wal = image.inodes[inode]
    for bit in range(0, covered_until * 8, 5):
        flipped = bytearray(wal)
        flipped[bit // 8] ^= 1 << bit % 8
        found = await _contents(_with(image, inode, bytes(flipped)))
        assert found == {ledger: b"coveredcovered toobeyond"}, f"bit {bit}"


async def test_a_closed_folder_opens_without_its_wal():
    disk, content = await _closed_folder()
    image = disk.image()
    for inode in image.names["data/wal"].values():
        image = _with(image, inode, b"\xff" * 5_000)
    assert await _contents(image) == content


async def test_a_segment_shorter_than_its_checkpoint_is_quarantined_alone():
    disk, content = await _closed_folder()
    image = disk.image()
    first, second = content
    inode = image.names[f"data/ledgers/{first:02x}"][f"{first:016x}.ledger"]
    for image_now in (
        _with(image, inode, image.inodes[inode][:-1]),
        Image(image.inodes, {**image.names, f"data/ledgers/{first:02x}": {}}),
    ):
        disk = ModelDisk(image_now)
        for _ in range(2):  # the quarantine outlives a restart
            store = await open_store(disk)
            with pytest.raises(DataCorrupt, match="quarantined"):
                store.append(first, [b"x"], 1, None)
            with pytest.raises(DataCorrupt):
                store.read_cached(first, 0, 1)
            for call in (store.read(first, 0, 1), store.recover(first)):
                with pytest.raises(DataCorrupt):
                    await call
            assert bytes(store.read_cached(second, 0, 100) or b"") == b"second"
            await store.close()
        store = await open_store(disk)
        await store.delete(first)
        assert [info.ledger for info in store.list()] == [second]
        await store.close()


async def test_a_missing_checkpoint_or_format_stops_the_opening():
    disk, _content = await _closed_folder()
    image = disk.image()
    for name in ("checkpoint", "format"):
        names = {key: value for key, value in image.names["data"].items() if key != name}
        with pytest.raises(HeadraceError, match=name):
            await _contents(Image(image.inodes, {**image.names, "data": names}))
