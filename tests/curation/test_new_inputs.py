"""Generated inputs: formats that are inferred and written back, and constraints that new records keep."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from coderl_tasks.curation.input_formats import infer_format
from coderl_tasks.curation.new_inputs import Record, new_inputs
from coderl_tasks.curation.treatment import Treatment
from coderl_tasks.paths import DATA


@pytest.mark.parametrize(
    ("texts", "records"),
    [
        (["3\n1 2 3\n", "2\n5 -4\n"], [[3, [1, 2, 3]], [2, [5, -4]]]),
        (["2 7\n1 2\n", "3 0\n4 4 4\n"], [[2, 7, [1, 2]], [3, 0, [4, 4, 4]]]),
        (["3 5 6 7\n", "1 9\n"], [[3, [5, 6, 7]], [1, [9]]]),
        (["1,2,3\n", "-4\n"], [[[1, 2, 3]], [[-4]]]),
        (["2\nab\ncd\n", "3\nx\nyy\nz\n"], [[2, ["ab", "cd"]], [3, ["x", "yy", "z"]]]),
        (["3\n1 2\n2 3\n", "2\n1 2\n", "4\n1 2\n1 3\n3 4\n"], [
            [3, [[1, 2], [2, 3]]], [2, [[1, 2]]], [4, [[1, 2], [1, 3], [3, 4]]],
        ]),
        (["2 3\n#.#\n...\n", "1 2\n##\n"], [[2, 3, ["#.#", "..."]], [1, 2, ["##"]]]),
        (["1.50 2\n", "0.25 3\n"], [[1.5, 2.0], [0.25, 3.0]]),
        (["2\n1 2\n3 4\n", "1\n5 6\n"], [[2, [[1, 2], [3, 4]]], [1, [[5, 6]]]]),
        (["2\n2\n1 5\n3\n1 2 3\n", "1\n1\n7\n"], [[2, [1, 5]], [3, [1, 2, 3]], [1, [7]]]),
    ],
)  # fmt: skip
def test_a_format_parses_what_it_was_inferred_from_and_writes_it_back(texts: list[str], records: list[Record]) -> None:
    found = infer_format(texts)
    assert found is not None
    parsed = [found.parse(text) or [] for text in texts]
    assert [record for each in parsed for record in each] == records
    assert [found.render(each).split() for each in parsed] == [text.split() for text in texts]


@pytest.mark.parametrize(
    ("texts", "statement", "records"),
    [
        (["2 -1 -1\n", "2 30 4\n"], "", [[2, [-1, -1]], [2, [30, 4]]]),  # else the count could be any number
        (["1\n-1 4 5\n", "1\n0 2 7 3\n"], "The first line is the number of test cases.", [
            [1, [[-1, 4, 5]]], [1, [[0, 2, 7, 3]]],
        ]),
        (["4 7 9\n", "1 5 2\n"], "The only line contains the integers.", [[[4, 7, 9]], [[1, 5, 2]]]),
        (["4 7 9\n", "1 5 2\n"], "The only line contains the integers a, b and c.", [[4, 7, 9], [1, 5, 2]]),
    ],
)  # fmt: skip
def test_few_inputs_leave_a_format_open_that_their_statement_decides(
    texts: list[str], statement: str, records: list[Record]
) -> None:
    found = infer_format(texts, statement)
    assert found is not None and [record for text in texts for record in found.parse(text) or []] == records


@pytest.mark.parametrize("texts", [[], [""], ["1\n\n2\n"], ["a" * 10 + "\n" * 3 + "b"]])
def test_inputs_with_gaps_have_no_format(texts: list[str]) -> None:
    assert infer_format(texts) is None


def test_the_formats_of_the_bundled_problems_are_found() -> None:
    found, same = 0, 0
    for file in sorted((DATA / "mini").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            tests = json.loads(json.loads(line)["tests"])
            texts = tests["inputs"] if isinstance(tests, dict) else [test["input"] for test in tests]
            if not isinstance(texts[0], str) or 'testtype": "functional' in line.replace("\\", ""):
                continue
            form = infer_format(texts)
            assert form is not None, texts[:2]
            found += 1
            same += all(form.render(form.parse(text) or []).split() == text.split() for text in texts)
    assert found > 500 and same == found


ROWS = [[[3, 1, 2], 2], [[5, 9, 4, 8], 1], [[7, 6], 0]]
CONSTRAINTS: list[tuple[list[Record], Callable[[Record], bool]]] = [
    ([[3, [5, 6, 7]], [1, [2]], [2, [9, 9]]], lambda record: record[0] == len(record[1])),
    ([[[1, 2, 5]], [[2, 2, 3, 9]], [[4, 8]]], lambda record: sorted(record[0]) == record[0]),
    ([[[9, 1, 5]], [[2, 7, 3, 4]], [[4, 8]]], lambda record: len(set(record[0])) == len(record[0])),
    ([[[2, 1, 3]], [[1, 2]], [[4, 1, 3, 2]]], lambda record: sorted(record[0]) == [*range(1, len(record[0]) + 1)]),
    ([[[1, 2], [3, 4]], [[5], [6]], [[7, 8, 9], [1, 1, 2]]], lambda record: len(record[0]) == len(record[1])),
    (ROWS, lambda record: 0 <= record[1] < len(record[0])),
    ([[2, 5], [1, 9], [3, 4]], lambda record: record[0] < record[1]),
    ([["(())"], ["()()"], ["(()())"]], lambda record: record[0].count("(") == record[0].count(")")),
    ([["12:30"], ["07:05"], ["23:59"]], lambda record: record[0][2] == ":" and record[0][:2].isdigit()),
    ([[[[1, 2], [3, 4]]], [[[5, 6, 7], [1, 2, 3], [0, 0, 0]]]], lambda record: len({*map(len, record[0])}) == 1),
    ([[[[1, 3], [2, 5]]], [[[0, 9]]], [[[4, 6], [4, 7], [1, 2]]]], lambda record: all(a < b for a, b in record[0])),
    ([[[1, 2, 1]], [[3, 1]], [[2, 3, 2, 1]]], lambda record: all(a != b for a, b in pairwise(record[0]))),
    ([["level"], ["abba"], ["x"]], lambda record: record[0] == record[0][::-1]),
    ([[[0, 1, 1]], [[1, 0]], [[1, 1, 1]]], lambda record: set(record[0]) <= {0, 1}),
]


@pytest.mark.parametrize(("records", "holds"), CONSTRAINTS)
def test_new_records_keep_what_the_given_ones_have_in_common(
    records: list[Record], holds: Callable[[Record], bool]
) -> None:
    assert all(map(holds, records))
    found = new_inputs(records, "", 1, 40)
    assert len(found) >= 5 and all(map(holds, found)), [each for each in found if not holds(each)]
    assert not [each for each in found if each in records]
    assert len({repr(each) for each in found}) == len(found)


def test_new_records_have_the_types_of_the_given_ones() -> None:
    records: list[Record] = [[("a", 1), {"k": [1.5]}, None, True], [("b", 4), {"j": [2.0, 3.5]}, None, False]]
    found = new_inputs(records, "", 3, 30)
    assert len(found) > 10
    for pair, table, nothing, truth in found:
        assert isinstance(pair, tuple) and isinstance(pair[0], str) and isinstance(pair[1], int)
        assert nothing is None and isinstance(truth, bool)
        assert all(isinstance(each, float) for values in table.values() for each in values)


def test_ranges_never_reach_up_and_lists_are_empty_only_where_the_statement_says_so() -> None:
    records: list[Record] = [[[4, 9, 2]], [[7, 7]], [[3, 20, 5, 6]]]
    plain, with_empty = (new_inputs(records, words, 1, 60) for words in ("Sum the list.", "It may be empty."))
    assert max(value for (values,) in plain + with_empty for value in values) <= 20
    assert [] not in [values for (values,) in plain] and [] in [values for (values,) in with_empty]
    assert new_inputs(records, "A list that is not empty.", 1, 60) == plain


def test_the_same_seed_gives_the_same_inputs() -> None:
    one, same, other = (new_inputs(ROWS, "", seed, 20) for seed in (1, 1, 2))
    assert one == same != other


def test_bounds_of_a_statement_narrow_the_range() -> None:
    records: list[Record] = [[4, 9], [3, 12], [5, 7]]
    lowest = [
        min(value for record in new_inputs(records, words, 1, 60) for value in record[:1])
        for words in ("", "3 <= k <= 9")
    ]
    assert lowest == [1, 3]


def test_values_that_nothing_is_known_of_are_taken_over() -> None:
    records: list[Record] = [[{1, 2}, 3], [{4}, 5]]
    assert {frozenset(record[0]) for record in new_inputs(records, "", 1, 20)} == {frozenset({1, 2}), frozenset({4})}


def values(records: list[Record], statement: str) -> list[Record]:
    return new_inputs(records, statement, 1, 50)


def test_a_number_of_elements_may_be_any_that_lists_may_have() -> None:
    found = values([[4, [1, 5, 9, 2]], [4, [3, 3, 8, 0]]], "n integers (n >= 2)")
    assert {record[0] for record in found} > {2, 3, 5} and all(record[0] == len(record[1]) >= 2 for record in found)


def test_integers_reach_below_zero_where_the_statement_speaks_of_them() -> None:
    def lowest(statement: str, *records: Record) -> int:
        return min(record[0] for record in values(list(records), statement))

    assert lowest("Look at the integers `a` and `b`.", [3, 5], [7, 2]) < 0
    assert lowest("Which of the numbers is less than zero?", [3, 5], [7, 2]) < 0
    assert lowest("Compute `a` to the power of the integer `b`.", [3, 5], [7, 2]) == 1
    assert lowest("Whole numbers `a` and `b`.", [3, 5], [7, 2]) == 0
    # What is said of integers is said of the list's elements.
    found = values([[[5, 9, 2], 3], [[4, 4], 6]], "A list of integers. Add k to each.")
    assert min(record[1] for record in found) == 1 and min(min(record[0]) for record in found) < 0


def test_small_integers_may_be_twice_as_large_where_nothing_bounds_them() -> None:
    records: list[Record] = [[3, 5], [7, 2]]
    assert 9 < max(record[0] for record in values(records, "Add the integers `a` and `b`.")) <= 14
    assert max(record[0] for record in values(records, "Add the digits `a` and `b`.")) == 7


def test_names_of_one_length_have_others_and_codes_and_single_characters_do_not() -> None:
    def lengths(*records: Record) -> set[int]:
        return {len(text) for (text,) in values(list(records), "Return it in capital letters.")}

    assert len(lengths(["Ada"], ["Kim"])) > 2
    assert lengths(["a-1"], ["b-7"]) == {3}
    assert lengths(["a"], ["b"], ["7"], ["c"], ["E"], ["x"], ["y"], ["z"]) == {1}


def test_what_two_inputs_have_in_common_by_chance_binds_others_only_where_the_statement_speaks_of_it() -> None:
    records: list[Record] = [[1, 5], [2, 7]]
    assert any(one > other for one, other in values(records, "Are the integers `a` and `b` both even?"))
    between = values(records, "Count the primes between `a` and `b`.")
    assert between and all(one <= other for one, other in between)
    text: list[Record] = [["green apple", "green"], ["radar", "ada"]]
    assert any(part not in whole for whole, part in values(text, "Is it true that `piece` is in `text`?"))
    parts = values(text, "Where in `text` does `piece` begin?")
    assert parts and all(part in whole for whole, part in parts)
    one_row: list[Record] = [[[[7, 4]]], [[]]]
    assert any(len({*map(len, rows)}) > 1 for (rows,) in values(one_row, "Join the lists in `rows`."))
    matrices = values(one_row, "Add up the matrix.")
    assert matrices and all(len({*map(len, rows)}) < 2 for (rows,) in matrices)


def test_lengths_reach_those_that_the_statement_names() -> None:
    longest = max(len(text) for (text,) in values([["ab"], ["c"]], "Has `text` more than 12 characters?"))
    assert 12 < longest <= 14


def test_a_list_of_odd_length_stays_one_where_the_statement_says_so() -> None:
    records: list[Record] = [[[4, 7, 1]], [[9, 2, 2, 8, 5]]]
    odd = values(records, "Return the median. The number of elements is odd.")
    assert odd and all(len(each) % 2 for (each,) in odd)
    assert any(len(each) % 2 == 0 for (each,) in values(records, "Return the number of odd elements."))


def test_of_large_inputs_a_beginning_is_mutated_if_it_has_what_they_have_in_common() -> None:
    large: list[Record] = [[400, [number % 7 for number in range(400)]], [500, [number % 5 for number in range(500)]]]
    found = values(large, "n integers")
    assert len(found) > 40 and all(record[0] == len(record[1]) < 300 for record in found)
    shuffled: list[Record] = [[[*range(400, 0, -1)]], [[*range(1, 400), 0]]]
    assert values(shuffled, "Some permutations.") == []  # a part of a permutation is none


def ranges(statement: str, treatment: Treatment, *records: Record) -> tuple[int, int]:
    """The lowest and the highest number in new records."""
    found = new_inputs(list(records), statement, 1, 80, treatment)
    inner = [value for record in found for field in record for value in (field if isinstance(field, list) else [field])]
    return min(inner), max(inner)


def test_numbers_that_references_only_calculate_with_may_be_any_that_the_statement_does_not_exclude() -> None:
    plain, zero = Treatment(is_plain=True, takes_zero=True), Treatment(takes_zero=True)
    low, high = ranges("Is `a` above `b`?", plain, [12, 4], [5, 2])
    assert low < -10 and high > 20
    assert ranges("Is `a` above `b`?", zero, [12, 4], [5, 2]) == (0, 12)
    assert ranges("Is `a` above `b`?", Treatment(), [12, 4], [5, 2]) == (1, 12)
    assert new_inputs([[1], [0]], "Is `a` odd?", 1, 80, plain) == []  # a switch, for all that is known
    assert ranges("Is the integer odd?", plain, [1], [0])[1] > 9
    assert ranges("Are the positive integers equal?", plain, [12, 4], [5, 2])[0] == 1
    assert ranges("Join the lists.", plain, [[3, 9]], [[5], [6, 7]][:1])[0] < 0


def test_elements_of_both_signs_may_have_one_digit_more() -> None:
    assert ranges("Print the sum.", Treatment(), [[57, -58, 1]], [[-3, 4]]) == (-200, 200)
    assert ranges("Add up the grades.", Treatment(), [[57, -58, 1]], [[-3, 4]]) == (-58, 58)
    assert ranges("Print the sum.", Treatment(), [[57, 58, 1]], [[3, 4]])[1] == 58


def test_a_single_argument_may_be_any_that_a_reference_compares_it_with() -> None:
    asked = Treatment(compared=frozenset({0, 100}))
    assert ranges("Has it three digits?", asked, [8], [60]) == (1, 101)
    assert ranges("Is it greater than zero?", asked, [8], [60]) == (-1, 101)


def test_lists_that_references_only_go_through_may_be_empty() -> None:
    empty, records = Treatment(takes_empty=True), [[[4, 9, 2]], [[7, 7]]]
    assert [[]] in new_inputs(records, "Sum the list.", 1, 60, empty)
    assert [[]] not in new_inputs(records, "Sum the list of at least one number.", 1, 60, empty)
    assert [[]] not in new_inputs(records, "Sum the list.", 1, 60)


def test_texts_have_the_characters_that_references_look_for_and_any_if_they_look_at_none() -> None:
    def characters(statement: str, treatment: Treatment) -> set[str]:
        return {each for (text,) in new_inputs([["xyz"], ["zx"]], statement, 1, 60, treatment) for each in text}

    assert characters("Count them.", Treatment(characters=frozenset("ae"))) == set("xyzae")
    assert len(characters("Its first half.", Treatment(takes_any_text=True))) > 40
    assert characters("The first half of the word.", Treatment(takes_any_text=True)) == set("xyz")


def test_a_counted_row_may_have_any_number_of_tokens() -> None:
    found = infer_format(["2 95 -8\n", "2 75 90\n"])
    assert found is not None
    records = [record for text in ("2 95 -8\n", "2 75 90\n") for record in found.parse(text) or []]
    new = values(records, "n integers (n >= 2), the lower one of the two if there are two")
    assert {len(numbers) for _, numbers in new} > {2, 3, 5} and all(count == len(numbers) for count, numbers in new)
    assert any(numbers != sorted(numbers) for _, numbers in new)
    lines = infer_format(["2\n2 1 5\n1 3\n", "1\n3 9 9 4\n"])
    assert lines is not None
    parsed = lines.parse("2\n2 1 5\n1 3\n") or []
    assert parsed == [[2, [[1, 5], [3]]]] and lines.render(parsed) == "2\n2 1 5\n1 3\n"


def test_single_elements_show_no_order_and_numbers_are_even_by_chance() -> None:
    one = values([[[22]], [[13]]], "Return a sorted list of the two smallest numbers.")
    assert any(numbers != sorted(numbers) for (numbers,) in one)
    even: list[Record] = [[[6, 122]], [[120, 60, 18, 74, 8, 4, 16]]]
    assert any(number % 2 for (numbers,) in values(even, "Add them.") for number in numbers)
    assert {number % 2 for (numbers,) in values(even, "Add the even numbers.") for number in numbers} == {0}
