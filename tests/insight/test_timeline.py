"""Curves on one axis of steps: the numbers beside them, the steps that are named, the marks of evaluations."""

import re

import polars as pl
import pytest

from coderl_tasks.insight.plots import evaluation_marks, history_panels
from coderl_tasks.insight.record import EvalRecord
from coderl_tasks.insight.shown_metrics import KL
from coderl_tasks.insight.timeline import Mark, Panel, Series, Timeline


def evaluation(name: str, step: int, n: int) -> EvalRecord:
    return EvalRecord(name, step, {"n": n, "pass_at_1": 0.5, "ci_low": 0.4, "ci_high": 0.6}, None)


@pytest.mark.parametrize(
    ("values", "label"),
    [([0.0, 0.0, 3.0], "A 3"), ([0.0] * 17 + [3.0, 3.0, 6.0], "A 4.5")],  # 20 values: the mean of three
)
def test_a_number_is_the_end_of_the_line_beside_it(values: list[float], label: str) -> None:
    panel = Panel("Title", [Series("A", range(len(values)), values)])
    [(place, _, words)] = panel.labels()
    assert words == label and place == float(label.removeprefix("A "))


@pytest.mark.parametrize(("end", "said"), [(0.0, "<1e-6"), (9e-7, "<1e-6"), (2.5e-6, "2.5e-06")])
def test_a_gap_that_is_rounding_is_said_as_tables_say_it(end: float, said: str) -> None:
    metrics = pl.DataFrame({"step": [0, 1], "kl_sample_train": [0.1, end]})
    assert [words for _, _, words in history_panels(metrics)[KL].labels()] == [said]


def test_few_steps_are_each_named() -> None:
    def named(steps: list[int]) -> list[str]:
        panel = Panel("Title", [Series("", steps, [0.5] * len(steps))])
        drawn = Timeline([panel], link=lambda step: f"/{step}", small=True).plot().drawn
        return re.findall(r'class="tick middle"[^>]*>(\d+)<', drawn)

    assert named([3, 17, 46]) == ["3", "17", "46"]
    assert named([3, 4, 400]) == ["3", "400"], "no number lies on another"
    assert named([*range(100)]) == ["0", "50"]


def test_an_evaluation_of_fewer_problems_is_an_open_circle() -> None:
    records = [evaluation("baseline", -1, 200), evaluation("step-000009", 9, 179), evaluation("final", 19, 180)]
    marks = evaluation_marks(records, 200, lambda record: f"/{record.name}")
    assert [mark.is_open for mark in marks] == [False, True, False]
    assert [mark.link for mark in marks] == ["/baseline", "/step-000009", "/final"]
    drawn = Timeline([Panel("Title", [Series("", range(20), [0.5] * 20)], marks)]).plot().drawn
    assert drawn.count('<circle class="open"') == 1


def test_marks_of_one_step_stand_side_by_side() -> None:
    marks = [Mark(5, 0.5, 0.4, 0.6, name, shift=shift) for name, shift in (("A", -5.0), ("B", 5.0))]
    drawn = Timeline([Panel("Title", [Series("", range(20), [0.5] * 20)], marks)]).plot().drawn
    first, second = (float(x) for x in re.findall(r'<circle class="" cx="([\d.]+)"', drawn))
    assert second - first == pytest.approx(10)
