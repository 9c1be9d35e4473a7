from coderl_tasks.filtering.overlap import Entry, OverlapRules, find_contaminated
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.problems import problem_from_row
from tests.filtering.made_problems import make_entry, make_text, with_changed_words

TESTS = {f"{number}\n": f"{number * number}\n" for number in range(8)}
OTHERS = {f"{number} 0\n": f"{number}\n" for number in range(8)}
SECRET = make_entry("row 7 of codeforces test", make_text("secret"), TESTS)


def faults(
    *train: Entry,
    evaluation: tuple[Entry, ...] = (SECRET,),
    rules: OverlapRules = OverlapRules(),  # noqa: B008 - frozen
) -> list[tuple[int, str, str]]:
    return [(index, *fault) for index, fault in find_contaminated(train, evaluation, rules).items()]


def test_copies_of_an_evaluation_problem_are_named() -> None:
    text = make_text("secret")
    long = f"{make_text('before', 200)} {text} {make_text('after', 50)}"
    clean = make_entry("row 0", make_text("clean"), TESTS)
    found = faults(clean, *(make_entry("row", words, OTHERS) for words in (text, long, with_changed_words(text, 3))))
    assert [fault[:2] for fault in found] == [(number, "ngram_overlap") for number in (1, 2, 3)]
    assert all("row 7 of codeforces test" in fault[2] for fault in found)


def test_a_rewritten_copy_is_known_by_its_tests() -> None:
    rewritten = with_changed_words(make_text("secret"), 6)
    assert faults(make_entry("row", rewritten, OTHERS)) == []
    assert faults(make_entry("row", rewritten, TESTS)) == [
        (0, "near_duplicate_statement", "62% alike with row 7 of codeforces test, 8 of 8 tests the same")
    ]


def test_boilerplate_does_not_count() -> None:
    boilerplate = make_text("boilerplate", 100)
    train = [make_entry(f"row {number}", f"{boilerplate} {make_text(number, 60)}", OTHERS) for number in range(12)]
    evaluation = make_entry("row 0 of lcbv5 test", f"{boilerplate} {make_text('own', 60)}", TESTS)
    assert faults(*train, evaluation=(evaluation,)) == []
    assert len(faults(*train[:3], evaluation=(evaluation,))) == 3, "a passage that few have counts"


def test_a_quotation_is_not_a_copy() -> None:
    quoting = f"{make_text('own', 100)} {' '.join(make_text('secret').split()[:45])}"
    assert faults(make_entry("row", quoting, OTHERS)) == []


def test_a_short_statement_word_for_word() -> None:
    short = make_entry("row 1 of lcbv5 test", "Print the largest sum of two numbers.", TESTS)
    same = make_entry("row", "print the largest   sum of two numbers.", OTHERS)
    other = make_entry("row", "Print the smallest sum of two numbers.", OTHERS)
    assert [fault[:2] for fault in faults(same, other, evaluation=(short,))] == [(0, "near_duplicate_statement")]


def test_no_evaluation_problems() -> None:
    assert faults(make_entry("row", make_text(0), TESTS), evaluation=()) == []


def test_assertions_contradict_only_where_one_test_has_two_answers() -> None:
    def entry(text: str, *tests: str) -> Entry:
        row = {"question": text, "tests": list(tests)}
        return Entry("id", "row", signature_of(problem_from_row(row, split="s", source_row=0)))

    text, tests = "Write a function double that gives twice a number, of any size or sign.", ["assert double(1) == 2"]
    secret = entry(text, *tests)
    other = entry(text, "assert double(3) == 6")
    assert not secret.signature.shared_tests(other.signature).contradict
    assert [fault[:2] for fault in faults(other, evaluation=(secret,))] == [(0, "near_duplicate_statement")]
    assert secret.signature.shared_tests(entry(text, *tests, "assert double(4) == 8").signature).agree
