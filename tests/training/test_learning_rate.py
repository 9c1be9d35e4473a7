"""The learning rate of each step, by hand."""

import pytest

from coderl_tasks.settings import TrainSettings
from coderl_tasks.training.run import adam_params_at


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant,warmup:2", [2.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0]),
        ("linear:6,warmup:2", [2.0, 4.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0]),
        ("cosine:6,warmup:2", [2.0, 4.0, 4.0, 2 + 2**0.5, 2.0, 2 - 2**0.5, 0.0, 0.0]),
    ],
)
def test_it_grows_stays_or_falls(schedule: str, rates: list[float]) -> None:
    settings = TrainSettings.model_validate({"learning_rate": 4.0, "schedule": schedule})
    found = [adam_params_at(settings, [], step).learning_rate for step in range(8)]
    assert found == pytest.approx(rates, rel=1e-15, abs=1e-15)


def test_by_default_it_is_what_was_given() -> None:
    assert [adam_params_at(TrainSettings(), [], step).learning_rate for step in (0, 1, 999)] == [4e-5] * 3
