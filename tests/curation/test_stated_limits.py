"""What statements say of their inputs: in how far new ones may differ from the given ones."""

import pytest

from coderl_tasks.curation.stated_limits import Said, stated_bounds


@pytest.mark.parametrize(
    ("says", "statements", "others"),
    [
        (
            "names_negative",
            [
                "Return True if one of the numbers is less than zero.",
                "Whole numbers above 5 count, negative numbers count too.",
                'Return "positive" if `x` is positive, "negative" if `x` is negative.',
                "Is at least one number in `items` below zero?",
            ],
            [
                "Compute 2 to the power of a non-negative integer `n`.",
                "Take each number modulo 3 (never negative).",
                "The sum of two positive integers, which cannot be negative numbers.",
                "Return the sum.",
                "",
            ],
        ),
        (
            "is_signed",
            ["Look at the integers `a` and `b`.", "At least one number in the list of integers is even."],
            [
                "Compute 3 to the power of `n`, an integer.",
                "The positive integer `n`.",
                "An integer, at least 1.",
                "Add.",
            ],
        ),
        (
            "may_be_zero",
            ["A whole number of years, `n`.", "`a` is zero or more.", "The sum up to `n` (0 if `n` is 0)."],
            ["A positive whole number.", "`a` is zero or more, `b` is 1 or more.", "If it is 0 return 'even'.", "Sum."],
        ),
        (
            "tells_cases",
            ["Upper and lower case are different.", "Return it in capital letters."],
            ["A word that consists of lowercase letters.", "A word."],
        ),
        ("is_grid", ["Transpose the matrix.", ""], ["Join the lists."]),
        (
            "may_be_empty",
            ["The list may be empty.", "If there are fewer than two, return all."],
            ["The list is not empty.", "A non-empty list.", "A list."],
        ),
        (
            "names_no_bound",
            ["Three integers are given."],
            ["An integer from 1 to 9.", "The digits of an integer.", "A word."],
        ),
        ("names_parity", ["The number of elements is odd."], ["Count the odd numbers.", "Is the length even?"]),
        (
            "relates_inputs",
            ["The integers `low` and `high`.", "The primes between `a` and `b`.", ""],
            ["`low` and `high`, in any order.", "Two integers.", "The distance between `a` and `b`."],
        ),
        (
            "speaks_of_order",
            ["A list in rising order.", "The sorted list."],
            ["All of them, in their order.", "In any order."],
        ),
        ("asks_yes_or_no", ["Find out if `a` is in `b`.", "Its index, or -1 if there is none."], ["The index of `a`."]),
        ("limits_zero", ["A positive number.", "An integer n >= 1.", ""], ["A number."]),
        (
            "limits_signs",
            ["The positive integers.", "An integer, at least 1.", "The width.", ""],
            ["Is `a` at least one hundred?", "The temperature at noon."],
        ),
        ("limits_size", ["At least two numbers.", "You may rely on a value.", "n >= 2", ""], ["The numbers in `a`."]),
        ("limits_characters", ["A word.", "Of lowercase letters.", ""], ["The text `message`."]),
        ("names_zero", ["Whether it is above zero."], ["A non-negative integer, not 0.", "The number."]),
        ("names_empty_elements", ["Empty lists are left out.", "An empty text in it."], ["The list may be empty."]),
        ("names_even", ["An even number of them.", ""], ["The sum."]),
        ("is_fixed_scale", ["The grades of a class.", ""], ["The second line has the numbers."]),
    ],
)
def test_words_that_let_inputs_differ(says: str, statements: list[str], others: list[str]) -> None:
    assert [each for each in statements if not getattr(Said(each), says)] == []
    assert [each for each in others if getattr(Said(each), says)] == []


def test_least_lengths_and_numbers_that_are_no_bounds() -> None:
    assert Said("A list of at least two integers that is not empty.").least_lengths == [2, 1]
    assert Said("n integers (n >= 3)").least_lengths == [3]
    assert Said("Three words are given.").counts(3) and Said("a list of 3 values").counts(3)
    assert not Said("n integers (n >= 2)").counts(2) and not Said("at least 2 of them, 4 in all").counts(2)


@pytest.mark.parametrize(
    ("statement", "bounds"),
    [
        ("1 <= n <= 100", [(1, 100)]),
        ("with $1 \\le n \\le 2 \\cdot 10^5$ and $-10^9 \\leq a_i \\leq 10^9$", [(1, 200_000), (-(10**9), 10**9)]),
        ("0 < x < 10", [(1, 9)]),
        ("1 ≤ k ≤ 1,000", [(1, 1000)]),
        ("a < b and 3 items", []),
    ],
)
def test_bounds_of_a_statement(statement: str, bounds: list[tuple[int, int]]) -> None:
    assert stated_bounds(statement) == bounds
