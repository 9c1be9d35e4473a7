"""Statements that accept several answers, and those that only sound like it."""

import pytest

from coderl_tasks.curation.phrases import multi_answer_phrase


@pytest.mark.parametrize(
    "statement",
    [
        "If there are multiple answers, print any.",
        "If there are several possible ways to do so,\noutput any of them.",
        "If there is more than one solution, you may print any one of them.",
        "Return any valid array.",
        "You can return the answer in any order.",
        "The edges may be printed in arbitrary order.",
        "If many optimal solutions exist, any of them will be accepted.",
        "Multiple answers are accepted.",
        "Print any suitable string.",
    ],
)
def test_several_answers_are_accepted(statement: str) -> None:
    phrase = multi_answer_phrase(f"Given n. {statement} The end.")
    assert phrase is not None
    assert phrase in " ".join(statement.split())


@pytest.mark.parametrize(
    "statement",
    [
        "If there are multiple answers, print the lexicographically smallest one.",
        "You may perform the operation any number of times.",
        "Several solutions exist. Print how many, modulo 7.",
        "Print -1 if there is no answer for any of the queries.",
        "Remove any element; print the largest sum. The input is in any order.",
        "If there are multiple solutions, choose the first. You can swap any two numbers.",
    ],
)
def test_one_answer_is_accepted(statement: str) -> None:
    assert multi_answer_phrase(statement) is None
