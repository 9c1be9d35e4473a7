"""Whether a statement accepts more than one answer, which a comparison with one expected output does not."""

import re

_MANY = r"(?:multiple|several|many|more than one|different|various|two or more)"
_ANSWERS = r"(?:answer|solution|output|way|option|result|possibilit|arrangement|permutation|sequence|string|path|array)"
_GIVE = r"(?:print|output|return|report|find|display|write|choose|construct|give)"
_IS = r"is|are|(?:will|would|can|may) be"
_FINE = r"(?:accepted|acceptable|allowed|fine|correct)"
_PHRASES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\b{_MANY}(?: \w+){{0,3}} {_ANSWERS}\w*\b[^.\n]{{0,60}}\bany\b(?! (?:number|other|more|further)\b)",
        rf"\b{_GIVE} any(?: one)? of (?:them|these|those|the)\b",
        rf"\b{_GIVE} any (?:\w+ ){{0,2}}{_ANSWERS}\w*\b",
        rf"\bany (?:of them|(?:\w+ )?{_ANSWERS}\w*) (?:{_IS}) {_FINE}\b",
        rf"\b(?:{_GIVE}|be {_GIVE}(?:ed|n)?)\b[^.\n]{{0,60}}\bin (?:any|arbitrary) order\b",
        rf"\b{_MANY} (?:\w+ )?{_ANSWERS}\w* (?:{_IS}) {_FINE}\b",
    )
)


def multi_answer_phrase(statement: str) -> str | None:
    """The words of a statement that say that any of several answers is accepted; None if there are none.

    "If there are multiple answers, print the smallest" has one answer and is not meant.
    """
    text = " ".join(statement.split())
    found = [match for pattern in _PHRASES if (match := pattern.search(text)) is not None]
    return min(found, key=lambda match: match.start())[0] if found else None
