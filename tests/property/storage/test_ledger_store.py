"""Any sequence of requests, restarts and kills: the files agree with a plain dictionary."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import LedgerSealed, LedgerUnknown
from headrace_verify.crash.model_disk import ModelDisk
from headrace_verify.crash.scenario import abandon, open_store

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.just(0), st.just(0)),
        st.tuples(st.just("append"), st.integers(0, 5), st.integers(0, 14_000)),
        st.tuples(st.just("several"), st.integers(0, 5), st.integers(1, 900)),
        st.tuples(st.just("seal"), st.integers(0, 5), st.integers(0, 50)),
        st.tuples(st.just("delete"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("kill"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


class Plain:
    def __init__(self):
        self.data = bytearray()
        self.footer = None


async def run(operations):
    disk = ModelDisk()
    store = await open_store(disk)
    model: dict[int, Plain] = {}
    ids: list[int] = []
    for number, (kind, which, size) in enumerate(operations):
        if kind == "create":
            ledger = await store.create()
            assert ledger not in ids
            ids.append(ledger)
            model[ledger] = Plain()
        elif kind in ("restart", "kill"):
            await (store.close() if kind == "restart" else abandon(store))
            store = await open_store(disk)
        elif ids:
            await _change(store, model, ids[which % len(ids)], kind, size, number)
        check(store, model)
    await abandon(store)


async def _change(store, model, ledger, kind, size, number):
    plain = model.get(ledger)
    data = bytes([number % 256]) * size
    try:
        if kind == "seal":
            await store.seal(ledger, data)
        elif kind == "delete":
            await store.delete(ledger)
        else:
            for step in range(3 if kind == "several" else 1):
                position, completion = store.append(ledger, [data], size, None if step else 5)
                assert position == len(plain.data) + step * size
            await completion.wait()
    except LedgerUnknown:
        assert plain is None
        return
    except LedgerSealed:
        assert plain.footer is not None
        return
    assert plain is not None
    if kind == "delete":
        del model[ledger]
    elif kind == "seal":
        assert plain.footer in (None, data)
        plain.footer = data
    else:
        assert plain.footer is None
        plain.data += data * (3 if kind == "several" else 1)


def check(store, model):
    found = {info.ledger: info for info in store.list()}
    assert found.keys() == model.keys()
    for ledger, plain in model.items():
        info = found[ledger]
        assert info.end == len(plain.data)
        assert info.is_sealed == (plain.footer is not None)
        assert info.footer == plain.footer
        assert bytes(store.read_cached(ledger, 0, 1 << 30)) == plain.data


@settings(max_examples=150, deadline=None)
@given(OPERATIONS)
def test_the_files_agree_with_a_dictionary(operations):
    asyncio.run(run(operations))
