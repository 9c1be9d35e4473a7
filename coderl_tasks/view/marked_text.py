"""Text of models, data sets and programs as HTML that shows all of it and does nothing: it is escaped, and what shows
nothing of its own (controls, direction overrides, zero-width characters) is written out.
"""

import difflib
import re
from collections.abc import Iterable

from markupsafe import Markup, escape
from pygments import highlight
from pygments.lexers.diff import DiffLexer

from coderl_tasks.insight.report import FORMATTER, PYTHON, highlighted
from coderl_tasks.untrusted_text import printable_lines

MOST_CHARS = 20_000
"""Of a text on a page; the whole is a page of its own."""
LEVELS = 8
"""Shades of a token."""
_DIFF = DiffLexer(stripnl=False, ensurenl=False)
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCE = re.compile(r"^(?:```|~~~)[^\n]*\n(?P<code>.*?)^(?:```|~~~)[ \t]*$", re.DOTALL | re.MULTILINE)


def visible(text: str | None) -> str:
    """`text`, no longer than a page takes, with nothing hidden in it."""
    return printable_lines((text or "")[:MOST_CHARS])


def plain(text: str | None) -> Markup:
    return escape(visible(text))


def code(text: str | None) -> Markup:
    return Markup(highlight(visible(text), PYTHON, FORMATTER))


def answer(text: str | None) -> Markup:
    return highlighted(visible(text))


def statement(text: str | None) -> Markup:
    """A statement: its blocks of code as such, the rest as text with its line breaks."""
    shown, end, parts = visible(text), 0, []
    for block in _FENCE.finditer(shown):
        parts += [_prose(shown[end : block.start()]), Markup("<pre>{}</pre>").format(code(block["code"]))]
        end = block.end()
    return Markup().join([*parts, _prose(shown[end:])])


def _prose(text: str) -> Markup:
    """Text with its line breaks; what stands between backticks on a line as code."""
    if not text.strip():
        return Markup()
    parts = [escape(part) for part in _INLINE.split(text.strip("\n"))]
    parts[1::2] = [Markup("<code>{}</code>").format(part) for part in parts[1::2]]  # they stood between backticks
    return Markup('<p class="prose">{}</p>').format(Markup().join(parts))


def differing(expected: str | None, got: str | None) -> tuple[Markup, Markup]:
    """Both texts, with what lies between their common beginning and their common end marked."""
    left, right = visible(expected), visible(got)
    most = min(len(left), len(right))
    start = next((place for place in range(most) if left[place] != right[place]), most)
    end = next((place for place in range(most - start) if left[-1 - place] != right[-1 - place]), most - start)
    return _marked(left, start, end), _marked(right, start, end)


def _marked(text: str, start: int, end: int) -> Markup:
    middle = text[start : len(text) - end]
    marked = Markup("<mark>{}</mark>").format(middle or "∅") if middle or start + end < len(text) else Markup()
    return Markup("{}{}{}").format(text[:start], marked, text[len(text) - end :])


def difference(before: str | None, after: str | None) -> Markup:
    """A unified diff of two texts, coloured; empty if they are the same."""
    old, new = (visible(text).splitlines() for text in (before, after))
    if old == new and (before or "") != (after or ""):
        if max(len(before or ""), len(after or "")) > MOST_CHARS:
            return Markup("(no difference in the first {:,} characters)").format(MOST_CHARS)
        return Markup("(they differ in line ends or in characters that show nothing)")
    lines = difflib.unified_diff(old, new, lineterm="", n=3)
    # Without the lines that name the files, and where the difference begins if that is at the first line.
    shown = "".join(f"{line}\n" for line in list(lines)[2:] if not line.startswith("@@ -1,"))
    return Markup(highlight(shown, _DIFF, FORMATTER))


def shaded(texts: Iterable[str], values: Iterable[float | None], most: float, sign: int) -> Markup:
    """Tokens as spans whose class is a shade: of a value times `sign` from 0 (none) to `most` and above; of a negative
    one of the other colour. A token's title says its number and its value."""
    parts = []
    for number, (text, value) in enumerate(zip(texts, values, strict=True)):
        level, said = "t-none", "none"
        if value is not None:
            place = min(LEVELS - 1, int(min(1.0, abs(value) / most) * LEVELS))
            level, said = f"{'t' if sign * value >= 0 else 'u'}{place}", f"{value:.4g}"
        span = Markup('<span class="tok {}" title="token {}: {}">{}</span>')
        parts.append(span.format(level, number, said, printable_lines(text) or "·"))
    return Markup().join(parts)
