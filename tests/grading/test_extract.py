"""Which block of a completion is the program, here and by the usual pattern of code recipes."""

import re
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.grading import extract_code


class Form(NamedTuple):
    """A completion, its program here and by the pattern (stripped, as the pattern's users do), and why they differ."""

    text: str
    ours: str | None
    pattern: str | None
    why: str = ""


FORMS: dict[str, Form] = {
    # fences on lines of their own
    "plain": Form("Here:\n```python\nprint(1)\n```\nDone.", "print(1)", "print(1)"),
    "without a tag": Form("```\nprint(1)\n```", "print(1)", "print(1)"),
    "another tag": Form("```py3 title=x\nprint(1)\n```", "print(1)", None, "any tag"),
    "the last of two": Form("```python\na\n```\nBetter:\n```python\nb\n```", "b", "b"),
    "no block": Form("print(1)", None, None),
    "empty": Form("", None, None),
    "unclosed": Form("```python\nprint(1)\n", None, None),
    "closed, then an unclosed one": Form("```python\na\n```\n```python\nb\n", "a", "a"),
    "unclosed, then a closed one": Form("```python\na\nNo:\n```python\nb\n```", "b", "a\nNo:", "the last block"),
    "closed by a longer fence": Form("```\na\n`````", "a", "a"),
    "closing fence with spaces": Form("```\na\n```   ", "a", "a"),
    "two backticks": Form("``\na\n``", None, None),
    "CRLF": Form("```python\r\na\r\n  b\r\n```\r\n", "a\n  b", None, "CRLF"),
    "blank block": Form("```python\n\n```", None, "", "blank"),
    "blank block after a program": Form("```python\na\n```\n```\n```", "a", "", "blank"),
    "blank lines kept": Form("```\n\na\n\n\nb\n```", "\na\n\n\nb", "a\n\n\nb"),
    "form feed and line separator stay": Form("```\na\x0cb\u2028c\n```", "a\x0cb\u2028c", "a\x0cb\u2028c"),
    # indentation
    "indented in a list": Form(
        "1. So:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y", "if x:\n       y", "indentation"
    ),
    "less indented inside": Form("  ```\n a\n    b\n  ```", "a\n  b", "a\n    b", "indentation"),
    "a fence deep inside is text": Form(
        "```python\ns = '''\n        ```\n'''\n```", "s = '''\n        ```\n'''", "s = '''", "backticks in the program"
    ),
    "an example in a docstring": Form(
        '```python\ndef f(x):\n    """\n    ```python\n    >>> f(1)\n    ```\n    """\n    return x\n```',
        'def f(x):\n    """\n    ```python\n    >>> f(1)\n    ```\n    """\n    return x',
        '"""\n    return x',
        "backticks in the program",
    ),
    "a program deep in an answer that stands between fences": Form(
        "```\nSo:\n\n    ```python\n    b\n    ```\n```",
        "b",
        "",
        "the block with a tag",
    ),
    "unclosed, then one deep inside": Form(
        "```\na\nNo:\n    ```python\n    b\n    ```", "b", "a\nNo:", "the last block"
    ),
    "unclosed around one deep inside, twice": Form(
        "```\na\nNo:\n    ```python\n    b\n    ```\nOr:\n```python\nc\n", "b", "Or:", "the last block"
    ),
    "closing fence indented too far": Form("```python\nprint(1)\n        ```", "print(1)", "print(1)"),
    # thoughts
    "inside an unclosed thought": Form("<think>\n```python\na\n```\n", None, "a", "thought"),
    "inside a thought": Form("<think>\n```python\na\n```\n</think>\nI do not know.", None, "a", "thought"),
    "inside a thought, at the end of a line": Form("<think>```python\na```</think>\nHm.", None, "a", "thought"),
    "after a thought": Form("<think>\n```python\na\n```\n</think>\n```python\nb\n```", "b", "b"),
    "after a thought, at the end of a line": Form("<think>```python\na```</think>\n```python\nb```", "b", "b"),
    "after the last of two thoughts": Form("x</think>\n```\na\n```\n</think>\n```\nb\n```", "b", "b"),
    "before a second thought": Form("</think>\n```\na\n```\n<think>\n```\nb\n```", "a", "b", "thought"),
    "opened by the prompt": Form("hm\n```\na\n```\n</think>\n```\nb\n```", "b", "b"),
    "fence across a thought": Form("```python\na</think>\n```\nb", None, "a</think>", "thought"),
    # other fences, quotes, inline code
    "tildes": Form("~~~python\na\n~~~", "a", None, "tildes"),
    "tildes, closed at the end of a line": Form("~~~python\na~~~", None, None),
    "tildes inside backticks": Form("```\na\n~~~\nb\n~~~\n```", "a\n~~~\nb\n~~~", "a\n~~~\nb\n~~~"),
    "four backticks around three": Form("````\na\n```\nb\n````", "a\n```\nb", "a", "nested fences"),
    "four backticks, at the end of a line": Form("````\n# ```x```\na````", "# ```x```\na", "a", "nested fences"),
    "four backticks, closed by three": Form("````python\na\n```", None, "a", "nested fences"),
    "inline code": Form("Use ```print(1)``` here.\n```print(2)```", None, None),
    "inline code in a block": Form("```\n# ```x```\na\n```", "# ```x```\na", "a", "backticks in the program"),
    "inline code over a line end": Form("It uses ```x```\nand ```y```.", None, "and", "inline code"),
    "inline code after a block": Form("```\na\n```\nIt uses ```x```\nand ```y```.", "a", "and", "inline code"),
    "backticks in a string": Form(
        "```\nprint('```')\nb\n```", "print('```')\nb", "print('", "backticks in the program"
    ),
    "quoted": Form("> ```\n> a\n> ```", None, "> a\n>", "quote"),
    "quoted, closed at the end of a line": Form("> ```\n> a```", None, "> a", "quote"),
    # closed at the end of a line, or before text
    "closed at the end of a line": Form("```python\nprint(1)```", "print(1)", "print(1)"),
    "closed after spaces": Form("```python\nprint(1) ```\n", "print(1)", "print(1)"),
    "closed at the end of a line, CRLF": Form("```python\r\na\r\nb```\r\n", "a\nb", None, "CRLF"),
    "closed at the end of a line, then prose": Form("```python\na```\nIt prints 1.\n", "a", "a"),
    "closed at the end of a line, in a list": Form(
        "- So:\n  ```\n  if x:\n      y```", "if x:\n    y", "if x:\n      y", "indentation"
    ),
    "closed before text": Form("```python\na\n``` This prints 1.", "a", "a"),
    "closed before text, no space": Form("```python\na\n```Done.", "a", "a"),
    "closed before one word": Form("```python\na\n```Done\nIt uses ```print```.", "a", "a"),
    "closed before text, then prose": Form("```python\na\n``` This prints 1.\n\nIt reads nothing.", "a", "a"),
    "closed before text, then a block": Form("```python\na\n``` It prints:\n```\n1\n```", "1", "1"),
    "closed within a line": Form("```python\na``` This prints 1.", "a", "a"),
    "closed by an opening fence": Form("```python\na\n```python", "a", "a"),
    "both at the end of a line": Form("```python\na```\nBetter:\n```python\nb```", "b", "b"),
    "a block, then one closed at the end of a line": Form("```\na\n```\nBetter:\n```\nb```", "b", "b"),
    "one closed at the end of a line, then a block": Form("```\na```\nBetter:\n```python\nb\n```", "b", "b"),
    "unclosed, then closed at the end of a line": Form(
        "```python\na\nNo:\n```python\nb```", "b", "a\nNo:", "the last block"
    ),
    "unclosed twice": Form("```python\na\nNo:\n```python\nb\n", "a\nNo:", "a\nNo:"),
    "blank, closed before text": Form("```python\n  ``` Done.", None, "", "blank"),
    # opened after text
    "opened after text": Form("The program: ```python\na\n```", "a", "a"),
    "opened after text, without a tag": Form("The program:```\na\n``` ", "a", "a"),
    "opened after text, closed at the end of a line": Form("The program: ```python\na```", "a", "a"),
    "opened after inline code": Form("No ```exit```, so: ```python\na\n```", "a", "a"),
    "opened in a list": Form(
        "1. ```python\n   if x:\n       y\n   ```", "if x:\n    y", "if x:\n       y", "indentation"
    ),
    "opened at the end of prose, never closed": Form("I would write it in ```python", None, None),
    "opened after text, twice": Form(
        "First: ```\na\n```\nThen: ```\nb\n```", "Then: ```\nb", "b", "fences on lines of their own pair up first"
    ),
}
# The pattern as the recipes describe it: three backticks, an optional tag, a line end, all up to three backticks.
PATTERN = re.compile(r"`{3}\w*\n([\s\S]*?)`{3}")


def by_pattern(text: str) -> str | None:
    blocks: list[str] = PATTERN.findall(text)
    return blocks[-1].strip() if blocks else None


@pytest.mark.parametrize("name", FORMS)
def test_extraction(name: str) -> None:
    form = FORMS[name]
    assert (extract_code(form.text), by_pattern(form.text)) == (form.ours, form.pattern)
    same = (None if form.ours is None else form.ours.strip()) == form.pattern
    assert same is (form.why == "")


PROSE = st.text("ab .:\n", max_size=12)
CODE_LINE = st.text("ab =(')#:", max_size=8)
PROGRAM = st.lists(CODE_LINE, min_size=1, max_size=4).map("\n".join).map(str.strip).filter(lambda code: code != "")
OPENINGS = ("\n```\n", "\n```python\n", "The program: ```python\n", "So:```\n")
CLOSINGS = ("\n```\n", "\n```", "```", "```\n", "\n``` This prints it.\n", "\n```Done.\n", "``` Done.\n", "\n    ```\n")


@given(PROSE, st.sampled_from(OPENINGS), PROGRAM, st.sampled_from(CLOSINGS), PROSE)
def test_every_opening_and_closing_that_the_pattern_takes(
    before: str, opening: str, program: str, closing: str, after: str
) -> None:
    text = before + opening + program + closing + after
    assert extract_code(text) == by_pattern(text) == program


# What a program may hold without ending its block: anything but a bare fence, or one that opens a block with a tag.
PIECES = st.sampled_from(["a", " ", "\t", "'```'", "# ```x```", "x```", "```x``` y", "~~~", "``", "print(1)"])
LINES = st.lists(PIECES, max_size=4).map("".join).filter(lambda line: not re.match(r"[ \t]*`{3,}[^`]*$", line))


@given(PROSE, st.lists(LINES, min_size=1, max_size=4), PROSE)
def test_a_block_between_fences_of_its_own_is_taken_whole(before: str, lines: list[str], after: str) -> None:
    program = "\n".join(lines)
    found = extract_code(f"{before}\n```python\n{program}\n```\n{after}")
    assert found == (program if program.strip() else None)
