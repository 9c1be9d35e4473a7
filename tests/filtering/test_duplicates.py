from coderl_tasks.filtering.overlap import Entry, find_duplicates
from tests.filtering.made_problems import make_entry, make_text, with_changed_words

THRESHOLD = 0.6
TESTS = {f"{number}\n": f"{number * number}\n" for number in range(8)}
OTHERS = {f"{number} 0\n": f"{number}\n" for number in range(8)}


def faults(*entries: Entry) -> list[tuple[int, str, str]]:
    return [(index, *fault) for index, fault in find_duplicates(entries, THRESHOLD).items()]


def test_the_same_but_for_white_space_and_case_is_the_same() -> None:
    text = make_text(0)
    spaced = {f"{given} ": f" {wanted}\n" for given, wanted in TESTS.items()}
    found = faults(make_entry("row 0", text, TESTS), make_entry("row 1", f"  {text.upper()}\n", spaced))
    assert found == [(1, "same_identity", "same as row 0")]


def test_an_id_of_the_datas_own() -> None:
    one = make_entry("row 0", make_text(0), TESTS, problem_id="a")
    same = make_entry("row 1", make_text(1), TESTS, problem_id="a")
    other = make_entry("row 2", make_text(2), OTHERS, problem_id="a")
    assert [fault[:2] for fault in faults(one, same, other)] == [(1, "same_identity"), (2, "same_id_other_tests")]


def test_an_edited_copy_needs_tests_that_agree() -> None:
    text = make_text(0)
    near = with_changed_words(text, 2)
    one = make_entry("row 0", text, TESTS)
    half = dict(list(TESTS.items())[:4])
    assert faults(one, make_entry("row 1", near, half)) == [
        (1, "near_duplicate", "89% alike with row 0, 4 of 4 tests the same")
    ]
    assert faults(one, make_entry("row 1", near, OTHERS)) == []
    assert faults(one, make_entry("row 1", near, TESTS | {"0\n": "9\n"})) == []
    assert faults(one, make_entry("row 1", with_changed_words(text, 12), TESTS)) == []


def test_the_tests_decide_where_a_third_of_the_text_differs() -> None:
    text = make_text(0)
    far = with_changed_words(text, 5)
    one = make_entry("row 0", text, TESTS)
    assert faults(one, make_entry("row 1", far, dict(list(TESTS.items())[:5]))) == [
        (1, "near_duplicate", "68% alike with row 0, 5 of 5 tests the same")
    ]
    few = dict(list(TESTS.items())[:3])
    assert faults(one, make_entry("row 1", far, few | OTHERS)) == []
    assert faults(one, make_entry("row 1", far, few | OTHERS | {"3\n": "no\n"})) == []


def test_the_same_statement_with_other_tests() -> None:
    one = make_entry("row 0", make_text(0), TESTS)
    assert faults(one, make_entry("row 1", make_text(0), OTHERS)) == [
        (1, "near_duplicate", "the statement of row 0, with other tests")
    ]
    contradicting = make_entry("row 1", make_text(0), OTHERS | {"0\n": "9\n"})
    assert faults(one, contradicting) == []
    short = [make_entry(f"row {number}", "See the picture.", tests) for number, tests in enumerate((TESTS, OTHERS))]
    assert faults(*short) == []


def test_what_a_dropped_one_resembles_is_looked_for_among_the_kept() -> None:
    text = make_text(0)
    entries = [make_entry("row 0", text, TESTS)]
    entries += [make_entry(f"row {n}", with_changed_words(text, n), TESTS) for n in (1, 2)]
    assert [fault[2][-26:] for fault in faults(*entries)] == ["row 0, 8 of 8 tests the same"[-26:]] * 2


def test_many_tests_are_compared_by_a_sample_of_them() -> None:
    text = make_text(0)
    many = {f"{number}\n": f"{number}\n" for number in range(1000)}
    fewer = {given: wanted for given, wanted in many.items() if int(given) % 3}
    found = faults(make_entry("row 0", text, many), make_entry("row 1", with_changed_words(text, 1), fewer))
    assert [fault[:2] for fault in found] == [(1, "near_duplicate")]
