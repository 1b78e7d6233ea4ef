"""Writing and recovering ledgers against simulated bookies: whatever happens, nothing is lost."""

from __future__ import annotations

import pytest
from tests.property.storage.bookie_simulator import Recoverer, SimulatedEnsemble, Writer

from headrace.storage.bookkeeper.ledger_metadata import LedgerState

SEEDS_QUICK, SEEDS_LONG = 1_000, 60_000
PART = 250
SEEDS_FOUND = (9973, 27034, 41838)
"""Each found a fault once."""


def play(seed: int) -> dict[str, int]:
    """One life of a ledger; what happened in it, to be counted."""
    world = SimulatedEnsemble(seed)
    random = world.random
    writer = Writer(world)
    recoverers = [Recoverer(world) for _ in range(random.choice([0, 1, 1, 2, 3]))]
    plan = [writer.append] * random.randrange(60)
    plan += [recoverer.start for recoverer in recoverers]
    plan += [writer.find_spares] * random.randrange(4)
    plan += [writer.look] * random.randrange(3)
    plan += [writer.grow_impatient] * random.randrange(4)
    plan += [writer.give_up] * random.randrange(2)
    for _ in range(random.choice([0, 0, 1, 1, 2, 4])):
        bookie = world.bookies[random.choice(list(world.bookies))]
        plan.append(lambda bookie=bookie: setattr(bookie, "is_up", False))
        if random.random() < 0.5:
            plan.append(lambda bookie=bookie: setattr(bookie, "is_up", True))
    random.shuffle(plan)
    if random.random() < 0.3:
        plan.insert(0, writer.seal)  # the plan is carried out from its end
    burst = random.choice([1, 3, 10])
    while plan:
        for act in plan[: -burst - 1 : -1]:
            act()
        del plan[-burst:]
        world.run(until=lambda: random.random() < 0.05)
    world.run()
    check_copies(world, writer)
    writer.give_up()

    is_settled = writer.failure is not None or writer.acknowledged == len(writer.entries) - 1
    assert is_settled, "an append is neither acknowledged nor failed"

    # The bookies that are left come back, and whoever comes last recovers what is not closed.
    for bookie in world.bookies.values():
        bookie.is_up = True
    world.loss = 0
    last = Recoverer(world)
    last.start()
    world.run()
    check(world, writer, [*recoverers, last])
    return {
        "recovered": sum(one.result is not None for one in recoverers),
        "failed recoveries": sum(one.has_failed for one in recoverers),
        "writer failed": writer.failure is not None,
        "writer closed": writer.is_closed,
        "ensembles": len(world.metadata.ensembles),
        "acknowledged": writer.acknowledged + 1,
        "found beyond": world.metadata.last_entry - writer.acknowledged,
    }


def check(world: SimulatedEnsemble, writer: Writer, recoverers: list[Recoverer]) -> None:
    final = world.metadata
    assert final.state is LedgerState.CLOSED, "with all bookies up, a ledger can be recovered"
    assert recoverers[-1].result == final
    for recoverer in recoverers:
        agrees = recoverer.result is None or recoverer.result == final
        assert agrees, "two recoveries disagree"
    assert writer.acknowledged <= final.last_entry, "an acknowledged entry is lost"
    if writer.is_closed:
        assert final.last_entry == writer.acknowledged == len(writer.entries) - 1
    assert final.last_entry < len(writer.entries)
    for entry in range(final.last_entry + 1):
        holders = [world.bookies[bookie] for bookie in final.bookies_of(entry)]
        copies = [bookie.entries[entry] for bookie in holders if entry in bookie.entries]
        assert len(copies) >= world.quorum.ack, f"entry {entry} has {len(copies)} copies"
        for copy in copies:
            assert copy.payload == writer.entries[entry].payload
            assert copy.length == writer.entries[entry].length
    length = writer.entries[final.last_entry].length if final.last_entry >= 0 else 0
    assert final.length == length
    firsts = [ensemble.first_entry for ensemble in final.ensembles]
    assert firsts == sorted(set(firsts))
    assert all(len(set(ensemble.bookies)) == world.quorum.ensemble for ensemble in final.ensembles)


def check_copies(world: SimulatedEnsemble, writer: Writer) -> None:
    """The copies that are counted as missing are those that are missing, or more."""
    if writer.failure is not None or world.metadata.state is not LedgerState.OPEN:
        return
    missing = sum(
        entry not in world.bookies[bookie].entries
        for entry in range(writer.acknowledged + 1)
        for bookie in world.metadata.bookies_of(entry)
    )
    counted = writer.handle.copies_missing
    assert counted >= missing, "copies are missing and are not counted"
    # A bookie that came back may hold what it stored before, and has not said so again.
    if not (world.loss or writer.was_change_slow or writer.has_bookie_returned):
        assert counted == missing


def test_a_bookie_that_comes_back_is_taken_into_its_own_slot():
    missing = 0
    for seed in range(SEEDS_QUICK):
        world = SimulatedEnsemble(seed)
        world.loss = 0
        random, writer = world.random, Writer(world)

        def is_enough(random=random) -> bool:
            return random.random() < 0.2

        for _ in range(random.randrange(1, 5)):
            victims = random.sample(list(world.bookies), random.randrange(1, len(world.bookies)))
            for victim in victims:
                world.bookies[victim].is_up = False
            for act in random.choices([writer.append, writer.grow_impatient], [5, 1], k=20):
                act()
                world.run(until=is_enough)
            for victim in victims:
                world.bookies[victim].is_up = True
            world.run()
            world.step += 1_000  # the quarantine is over
            writer.find_spares()
            world.run()
            note = f"seed {seed}"
            assert writer.failure is None, note
            assert not writer.handle.lost, note
            assert writer.acknowledged == len(writer.entries) - 1, note
            assert world.metadata.last_ensemble.bookies == tuple(writer.handle.ensemble), note
            before = writer.handle.copies_missing
            writer.append()
            world.run()
            assert writer.handle.copies_missing == before, "the next entry has all its copies"
            check_copies(world, writer)
            missing += before
        writer.seal()
        world.run()
        assert writer.is_closed
        check(world, writer, [recovered(world)])
    assert missing, "no bookie was away while entries were acknowledged"


def recovered(world: SimulatedEnsemble) -> Recoverer:
    recoverer = Recoverer(world)
    recoverer.start()
    world.run()
    return recoverer


def test_acknowledged_entries_are_found_by_every_recovery():
    seen: dict[str, int] = {}
    for seed in (*SEEDS_FOUND, *range(SEEDS_QUICK)):
        try:
            for name, count in play(seed).items():
                seen[name] = seen.get(name, 0) + count
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    # The simulation must not have become a harmless one.
    assert all(seen[name] > SEEDS_QUICK / 50 for name in seen), seen


@pytest.mark.long
@pytest.mark.parametrize("part", range(SEEDS_LONG // PART))
def test_acknowledged_entries_are_found_by_every_recovery_over_many_seeds(part):
    for seed in range(SEEDS_QUICK + part * PART, SEEDS_QUICK + (part + 1) * PART):
        try:
            play(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
