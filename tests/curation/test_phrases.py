"""What statements say of answers: that several are right, what does not matter, and what only sounds like it."""

import pytest

from coderl_tasks.curation.phrases import multi_answer_phrase, said_of_answers


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


@pytest.mark.parametrize(
    "statement",
    [
        "You may return the answer in any order.",
        "The order of the output does not matter.",
        "If there are several such pairs, you can print them in an arbitrary order.",
        "Print the names; their order is not important.",
        "It doesn't matter in which order you print them.",
        "Given a sorted array, return the positions in any order.",
        "Print the winners. Any order is accepted.",
        "Print the divisors of a number in any order.",
    ],
)
def test_any_order_is_allowed(statement: str) -> None:
    said = said_of_answers(statement)
    assert said.any_order and not (said.ordered or said.cases or said.several), said


@pytest.mark.parametrize(
    "statement",
    [
        "The edges are given in any order. Print the longest path.",
        "Given a list of words in any order, return the longest one.",
        "Print the number of ways to take the balls in any order.",
        "You may take the balls in any order; print their number.",
    ],
)
def test_no_order_of_the_answer_is_meant(statement: str) -> None:
    assert not said_of_answers(statement).any_order


def test_what_an_order_is_of_decides() -> None:
    assert said_of_answers("Print the teams sorted by points, equal teams in any order.").ordered == "sorted"
    assert said_of_answers("Print them by rank. Ties may be printed in any order.").several == "Ties"
    assert said_of_answers("Print the words in any order, for each test case.").cases == "for each test case"
    assert said_of_answers("The order of the output and the order of each row do not matter.").several
    assert said_of_answers("If there are several permutations, print any of them.").several
    assert said_of_answers("Print the sets in any order. Within a line, print numbers in any order.").several
    assert said_of_answers("Print the words by length.").ordered == "by length"
    assert said_of_answers("Print them in any order. Print each sorted.").ordered == "sorted"
    assert said_of_answers("Print it in any case. If there are several answers, print any of them.").several


@pytest.mark.parametrize(
    ("statement", "tolerance"),
    [
        ("Answers with an absolute or relative error below 10^{-6} are accepted.", "float:1e-6"),
        ("The absolute error of your answer must not exceed 10⁻⁴.", "float:1e-4,0"),
        ("Print it with a relative error of at most 1e-09.", "float:0,1e-9"),
        ("The answer may differ by 0.001.", "float:1e-3"),
        ("An error of 5 * 10^-7 in the answer is allowed.", ""),
        ("The answer is accepted within 10^-4. For small n an error of the answer of 10^-6 is allowed.", ""),
        ("Sensors have an error of 10^-3. Print how many there are.", ""),
    ],
)
def test_a_tolerance_is_that_of_the_answer(statement: str, tolerance: str) -> None:
    assert said_of_answers(statement).tolerance == tolerance


@pytest.mark.parametrize(
    ("statement", "is_free"),
    [
        ("You can print each letter in any case (upper or lower).", True),
        ("The checker is case-insensitive.", True),
        ("Print YES if the words are equal in a case-insensitive comparison.", False),
        ("The words have letters in any case. Print the longest.", False),
    ],
)
def test_the_case_is_that_of_the_answer(statement: str, is_free: bool) -> None:
    assert bool(said_of_answers(statement).any_case) == is_free


def test_repeated_elements_are_those_of_the_answer() -> None:
    assert said_of_answers("Print the colours in any order; duplicates are allowed.").repeats
    assert not said_of_answers("Print a way; vertices may be printed more than once.").repeats
    assert not said_of_answers("The list may contain duplicates. Print the colours without duplicates.").repeats
