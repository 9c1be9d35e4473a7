"""Packing: nothing is lost, prefixes are shared, budgets hold."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from local_servers.tinker.engine.packing import bucket_by_length, common_prefix, group_by_prefix, pack

sequences = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(np.array), min_size=1, max_size=12)


@settings(max_examples=80)
@given(sequences, st.integers(1, 40))
def test_every_datum_is_found_again_in_the_packed_rows(given_sequences: list[np.ndarray], budget: int) -> None:
    seen = []
    for prefix, batches in pack(given_sequences, budget):
        assert len(prefix) == 0 or all(group.prefix == 0 for batch in batches for group in batch.groups)
        assert len(prefix) > 0 or len(batches) == 1
        tokens = np.concatenate([prefix, *(batch.tokens for batch in batches)])
        positions = np.concatenate([np.arange(len(prefix)), *(batch.positions for batch in batches)])
        for batch in batches:
            assert 0 < len(batch.tokens) == len(batch.positions)
            for index, rows in batch.datum_rows:
                seen.append(index)
                np.testing.assert_array_equal(tokens[rows], given_sequences[index])
                np.testing.assert_array_equal(positions[rows], np.arange(len(rows)))
            ends = [0]
            for group in batch.groups:  # the groups' parts tile the rows, in order
                assert group.start == ends[-1]
                ends.append(group.start + group.prefix)
                for bucket in group.buckets:
                    assert bucket.start == ends[-1]
                    ends.append(bucket.start + bucket.count * bucket.length)
            assert ends[-1] == len(batch.tokens)
    assert sorted(seen) == list(range(len(given_sequences)))


@settings(max_examples=50)
@given(sequences)
def test_packing_never_takes_more_rows_than_separate_sequences_plus_padding(given_sequences: list[np.ndarray]) -> None:
    rows = sum(
        prefix + sum(len(given_sequences[member]) - prefix for member in members)
        for prefix, members in group_by_prefix(given_sequences)
    )
    assert rows <= sum(map(len, given_sequences))


def test_groups_with_a_common_head_are_kept_apart() -> None:
    head = list(range(100))
    first, second = head + [1] * 50, head + [2] * 50
    data = [np.array(prompt + [number] * 5) for prompt in (first, second) for number in range(10, 18)]
    assert [(prefix, len(members)) for prefix, members in group_by_prefix(data)] == [(150, 8), (150, 8)]


def test_buckets_hold_near_equal_lengths_and_skip_empty_suffixes() -> None:
    lengths = [64, 0, 60, 10, 62, 11]
    assert bucket_by_length(lengths, 0, 10_000) == [[0, 4, 2], [5, 3]]
    assert bucket_by_length(lengths, 100, 250) == [[0], [4], [2], [5, 3]]


def test_common_prefix() -> None:
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2])) == 2
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 4, 3])) == 1
    assert common_prefix(np.array([1]), np.array([2])) == 0


def test_a_large_group_is_split_under_the_budget() -> None:
    data = [np.array([7] * 20 + [number] * 10) for number in range(30)]
    packed = pack(data, 60)
    assert all(len(batch.tokens) <= 60 for series in packed for batch in series.batches)
    assert sum(len(batch.datum_rows) for series in packed for batch in series.batches) == 30


def test_a_long_prefix_is_not_recomputed_for_each_member() -> None:
    data = [np.array([7] * 300 + [number] * 10) for number in range(16)]
    (series,) = pack(data, 64)
    assert len(series.prefix) == 300 and len(series.batches) == 3


def test_a_prefix_is_computed_again_where_threads_can_then_share_its_group() -> None:
    data = [np.array([7] * 30 + [number] * 50) for number in range(16)]
    packed = pack(data, 120)
    assert [(len(series.prefix), len(series.batches)) for series in packed] == [(30, 2), (30, 2), (30, 2), (30, 2)]
