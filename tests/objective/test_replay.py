"""Sizes of recordings, which work without a GPU."""

from numerate.objective.replay import padded_size


def test_a_recording_has_room_and_is_little_larger():
    for rows in (0, 1, 63, 64, 65, 1000, 1025, 100_000):
        size = padded_size(rows)
        assert rows <= size <= max(rows + 63, rows * 1.25)
        assert size % 64 == 0
