"""The learning rate of each step, by hand."""

import pytest

from coderl_tasks.policy.update import Schedule, learning_rate_at


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]),
        ("linear", [2.0, 4.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0]),
        ("cosine", [2.0, 4.0, 4.0, 2 + 2**0.5, 2.0, 2 - 2**0.5, 0.0, 0.0]),
    ],
)
def test_it_grows_stays_or_falls(schedule: Schedule, rates: list[float]) -> None:
    found = [learning_rate_at(step, 4.0, warmup_steps=2, schedule=schedule, total_steps=6) for step in range(8)]
    assert found == pytest.approx(rates, rel=1e-15, abs=1e-15)


def test_by_default_it_is_what_was_given() -> None:
    assert [learning_rate_at(step, 4e-5) for step in (0, 1, 999)] == [4e-5] * 3
