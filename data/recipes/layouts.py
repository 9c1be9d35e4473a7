"""How a composed problem gets its input: ten layouts of standard input, three of these untaught, four of functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from data.recipes.operations import Slip

SPLIT = "a = list(map(int, input().split()))"


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to receive the numbers (and the constant k where `has_k`).

    `say` describes the input; `read` are the lines that read it, the last one with `slips` as its wrong variants.
    `array` is the variable that holds the numbers.
    """

    name: str
    say: str
    read: tuple[str, ...]
    slips: tuple[Slip, ...] = ()
    has_k: bool = False
    functional: bool = False
    array: str = "a"


STDIN_LAYOUTS = (
    Layout(
        "counted",
        "The first line contains n. The second line contains n integers.",
        ("n = int(input())", SPLIT),
    ),
    Layout("bare", "The only line contains the integers, separated by spaces.", (SPLIT,)),
    Layout(
        "lines",
        "The first line contains n. Each of the next n lines contains one integer.",
        ("n = int(input())", "a = [int(input()) for _ in range(n)]"),
        (Slip("a = [int(input()) for _ in range(n - 1)]", 0.06),),
    ),
    Layout(
        "commas",
        "The only line contains the integers, separated by commas.",
        ('a = list(map(int, input().split(",")))',),
        (Slip(SPLIT, 0.03),),
    ),
    Layout(
        "leading",
        "The only line contains n, followed by n integers.",
        (f"{SPLIT}[1:]",),
        (Slip(SPLIT, 0.4),),
    ),
    Layout(
        "cases",
        "The first line contains the number of test cases t. Each test case is a line of integers."
        " Answer each test case on a line of its own.",
        ("for _ in range(int(input())):", f"    {SPLIT}"),
    ),
    Layout(
        "with_k",
        "The first line contains n and k. The second line contains n integers.",
        (SPLIT, "n, k = map(int, input().split())"),
        (Slip("k, n = map(int, input().split())", 0.04),),
        has_k=True,
    ),
)

UNTAUGHT_LAYOUTS = (
    Layout(
        "semicolons",
        "The only line contains the integers, separated by semicolons.",
        ('a = list(map(int, input().split(";")))',),
    ),
    Layout(
        "trailing",
        "The only line contains n integers, followed by n.",
        (f"{SPLIT}[:-1]",),
        (Slip(SPLIT, 0.0), Slip(f"{SPLIT}[1:]", 0.0)),
    ),
    Layout(
        "rows",
        "The first line contains m. Each of the next m lines contains at most three of the integers.",
        ("m = int(input())", "a = [int(word) for _ in range(m) for word in input().split()]"),
    ),
)
"""Standard input as the nano model's teacher never shows it: of data/skewed alone."""

FUNCTION_LAYOUTS = (
    Layout("function", "", ("def {name}(a):",), functional=True),
    Layout("function_k", "", ("def {name}(a, k):",), has_k=True, functional=True),
    Layout(
        "method",
        "",
        ("class Solution:", "    def {name}(self, nums: List[int]) -> {returns}:"),
        functional=True,
        array="nums",
    ),
    Layout(
        "method_k",
        "",
        ("class Solution:", "    def {name}(self, nums: List[int], k: int) -> {returns}:"),
        has_k=True,
        functional=True,
        array="nums",
    ),
)


def render_stdin(layout: Layout, cases: Sequence[list[int]], k: int) -> str:
    """The standard input that gives these numbers; only the layout "cases" takes more than one list."""
    if layout.name == "cases":
        return "\n".join([str(len(cases)), *(" ".join(map(str, case)) for case in cases)]) + "\n"
    (numbers,) = cases
    words = [str(number) for number in numbers]
    match layout.name:
        case "counted":
            text = f"{len(words)}\n{' '.join(words)}"
        case "lines":
            text = "\n".join([str(len(words)), *words])
        case "commas":
            text = ",".join(words)
        case "leading":
            text = " ".join([str(len(words)), *words])
        case "with_k":
            text = f"{len(words)} {k}\n{' '.join(words)}"
        case "semicolons":
            text = ";".join(words)
        case "trailing":
            text = " ".join([*words, str(len(words))])
        case "rows":
            lines = [" ".join(words[first : first + 3]) for first in range(0, len(words), 3)]
            text = "\n".join([str(len(lines)), *lines])
        case _:
            text = " ".join(words)
    return text + "\n"
