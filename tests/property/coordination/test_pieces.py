"""Keys of a dictionary that changes while they are listed."""

from __future__ import annotations

import random

import pytest

from headrace.coordination.kit import pieces
from headrace.coordination.kit.pieces import keys_in_pieces

HISTORIES = 300


def run(seed: int) -> None:
    rng = random.Random(seed)
    keys = dict.fromkeys(range(rng.randrange(40)), 0)
    removed_keys: list[int] = []
    next_key = len(keys)
    stays, seen = set(keys), []
    for key in keys_in_pieces(keys, removed_keys.__len__):
        seen.append(key)
        for _ in range(rng.choice([0, 0, 1, 3])):
            match rng.randrange(4):
                case 0 if keys:
                    removed = rng.choice(list(keys))
                    del keys[removed]
                    stays.discard(removed)
                    removed_keys.append(removed)
                    if rng.random() < 0.3:
                        keys[removed] = 1  # at the end, as a new one
                case 1 if next_key < 80:
                    keys[next_key] = 0
                    next_key += 1
                case _ if keys:
                    keys[rng.choice(list(keys))] = 2
    assert stays <= set(seen), f"seed {seed}: {sorted(stays - set(seen))} were left out"


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_keys_that_stay_are_never_left_out(monkeypatch, size):
    monkeypatch.setattr(pieces, "PIECE_KEYS", size)
    for seed in range(HISTORIES):
        run(seed)


def test_removals_that_are_not_counted_leave_keys_out(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_KEYS", 2)
    keys = dict.fromkeys(range(10))
    listing = keys_in_pieces(keys, lambda: 0)
    seen = [next(listing), next(listing)]
    del keys[0], keys[1]
    seen += listing
    assert set(range(2, 10)) - set(seen), "or the count is not needed at all"


def test_a_dictionary_that_stays_is_listed_once(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_KEYS", 3)
    keys = dict.fromkeys(range(10))
    assert list(keys_in_pieces(keys, lambda: 0)) == list(range(10))
