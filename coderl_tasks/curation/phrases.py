"""What a statement says of right answers: whether there are several, and what about an answer does not matter.

Patterns, not understanding. What decides something (`Said`) is about answers, not inputs, and errs towards saying
nothing: "the edges are given in any order" frees no order of the output.
"""

import re
from dataclasses import dataclass

_MANY = r"(?:multiple|several|many|more than one|different|various|two or more)"
_ANSWERS = r"(?:answer|solution|output|way|option|result|possibilit|arrangement|permutation|sequence|string|path|array)"
_GIVE = r"(?:print|output|return|report|find|display|write|choose|construct|give)"
_IS = r"is|are|(?:will|would|can|may) be"
_FINE = r"(?:accepted|acceptable|allowed|fine|correct)"
_IN_ANY_ORDER = rf"\b(?:{_GIVE}|be {_GIVE}(?:ed|n)?)\b[^.\n]{{0,60}}\bin (?:any|arbitrary) order\b"


def _patterns(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


_SEVERAL = _patterns(
    rf"\b{_MANY}(?: \w+){{0,3}} {_ANSWERS}\w*\b[^.\n]{{0,60}}\bany\b(?! (?:number|other|more|further)\b)",
    rf"\b{_GIVE} any(?: one)? of (?:them|these|those|the)\b",
    rf"\b{_GIVE} any (?:\w+ ){{0,2}}{_ANSWERS}\w*\b",
    rf"\bany (?:of them|(?:\w+ )?{_ANSWERS}\w*) (?:{_IS}) {_FINE}\b",
    rf"\b{_MANY} (?:\w+ )?{_ANSWERS}\w* (?:{_IS}) {_FINE}\b",
)
_SUSPECT = (*_SEVERAL, *_patterns(_IN_ANY_ORDER))

# Words of giving an answer, with none that the input is described by, and the answer itself.
_PRINT = r"(?:(?:print|output|return|report|display|write)(?:s|ed)?|listed)"
_ANSWER = r"(?:answers?|outputs?|results?|verdicts?|judge|checker|grader)"
_NOT_A_COUNT = r"(?:(?!\b(?:number of|how many|count|ways|sum of|given)\b)[^.;\n])"
_MATTERS_NOT = (
    r"(?:(?:does|do|is|will|need) ?n[o']t (?:matter|important|relevant|be checked)|is (?:irrelevant|arbitrary))"
)
_ANY = r"(?:any|(?:an )?arbitrary|no (?:particular|specific)|whatever)"
_ANY_ORDER = _patterns(
    rf"\b{_PRINT}\b{_NOT_A_COUNT}{{0,60}}?\bin {_ANY} order\b",
    rf"\bany order(?:ing)? (?:(?:{_IS}) {_FINE}|will do|works)\b",
    rf"\b(?:{_PRINT}|{_ANSWER})\b{_NOT_A_COUNT}{{0,40}}?\border\b[^.;\n]{{0,20}}?\b{_MATTERS_NOT}",
    rf"\border\b[^.;\n]{{0,30}}?\b(?:{_PRINT}|{_ANSWER})\b[^.;\n]{{0,30}}?\b{_MATTERS_NOT}",
    rf"\b{_PRINT}\b[^.\n]{{0,80}}?\b(?:their|its) order {_MATTERS_NOT}",
    rf"\b{_MATTERS_NOT} in (?:which|what) order you {_PRINT}\b",
)
_ANY_CASE = _patterns(
    rf"\b(?:{_PRINT}|{_ANSWER})\b[^.;\n]{{0,80}}?\bin (?:any|either) (?:letter )?(?:case|register)\b",
    rf"\b{_ANSWER} (?:{_IS}) (?:checked |compared |judged )?(?:case[- ]insensitive(?:ly)?|not case[- ]sensitive)\b",
    rf"\bcase of (?:the |your )?(?:letters in (?:the |your )?)?{_ANSWER}\b[^.;\n]{{0,20}}?\b{_MATTERS_NOT}",
)
_REPEATS = _patterns(
    r"\b(?:duplicates|repetitions?|multiplicit(?:y|ies)|repeated (?:elements|values|numbers|words|lines))"
    rf"(?: in (?:the |your )?{_ANSWER})? (?:(?:{_IS}) (?:{_FINE}|ignored|permitted)|do(?:es)? ?n[o']t matter)"
    r"(?! in the input)",
    rf"\b(?:may|can) be (?:{_PRINT}|repeated) (?:more than once|several times|any number of times)\b",
    rf"\b{_ANSWER} (?:{_IS}) (?:checked|compared|judged|treated) as (?:a set|sets)\b",
)
_ORDER_WORDS = _patterns(
    r"\b(?:sort(?:ed)?|(?:non-?)?(?:in|de)creasing|ascending|descending|(?:chrono|alphabeti|lexicographi)\w*"
    r"|in (?:the|this|that|their|input|original|reverse|topological|order of) (?:\w+ )?order|in order"
    r"|(?:smallest|largest|first|last) (?:one )?first|from (?:the )?(?:left|right|smallest|largest|top|first)"
    r"|reversed?)\b"
)
# What leaves part of the order fixed: ties, the members of each group.
_PARTLY_FREE = _patterns(
    r"\b(?:ties?|tied|(?:with|having|of) (?:the )?(?:same|equal)|equal \w+|(?:for|in|of) (?:each|every)"
    r"|(?:with)?(?:in|of|inside) (?:an?|one|the|its|their) (?:same )?"
    r"(?:line|row|group|team|pair|component|block|level)s?)\b"
)
# Where a statement says nothing of any order, these may ask for one.
_PERHAPS_ORDER_WORDS = _patterns(
    r"(?<!separated )(?<!divided )(?<!divisible )(?<!multiplied )\bby \w+|\b(?:before|after|then|next|followed)\b"
)
_REARRANGING_WORDS = _patterns(r"\b(?:permut|arrang|rearrang|shuffl|rank)\w*")
_CASES = _patterns(
    r"\b(?:for|of) (?:each|every|all)(?: of the)? (?:\w+ )?(?:test ?cases?|tests?|quer(?:y|ies)|data ?sets?|cases?)\b",
    r"\b(?:multiple|several|number of|[a-z]) test ?cases\b",
)
_MINUS = r"(?:-|\u2212|\u2013)"
_NUMBER = re.compile(
    rf"(?P<factor>[*x\u00d7\u00b7]|\\cdot|\\times)?\s*\b10\s*(?:\^|\*\*|<sup>)?\s*[{{(]?\s*{_MINUS}\s*(?P<power>\d{{1,2}})"
    rf"|\b1(?:\.0+)?[eE]{_MINUS}0?(?P<exponent>\d{{1,2}})\b|\b0\.(?P<zeros>0*)1\b",
)
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
_ERROR = re.compile(r"\b(?:errors?|tolerances?|precision|differs?|within|accuracy)\b", re.IGNORECASE)
_OF_AN_ANSWER = re.compile(rf"\b(?:{_ANSWER}|{_PRINT}|accepted|correct)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Said:
    """What a statement says of an answer, each as its words, "" where it says nothing: that it may be in any order, or
    in any letter case; that elements may be repeated; that some order is asked for, or may be; that one input holds
    several cases; that several answers are right. `tolerance` is the comparator of the one error that it allows."""

    any_order: str
    any_case: str
    repeats: str
    tolerance: str
    ordered: str
    cases: str
    several: str


def said_of_answers(statement: str) -> Said:
    text = " ".join(statement.split())
    any_order, any_case, repeats = _first(_ANY_ORDER, text), _first(_ANY_CASE, text), _first(_REPEATS, text)
    if not any_order and not re.search(r"\bsets?\b", repeats):
        repeats = ""  # not of an answer: a path may visit a vertex twice
    # Without the words that free order or case: "any order" is neither a demand nor "any answer".
    rest = text
    for phrase in filter(None, (any_order, any_case)):  # to replace "" would put a space between all characters
        rest = rest.replace(phrase, " ")
    return Said(
        any_order,
        any_case,
        repeats,
        _tolerance(text),
        ordered=_demanded_order(any_order, rest),
        cases=_first(_CASES, text),
        # No comparator allows some orders and not others.
        several=_partly_free_order(text) or _first(_SEVERAL, rest),
    )


def _partly_free_order(text: str) -> str:
    """The words by which only a part of the order is free, so that it counts as several right answers: a sentence on
    two orders ("the order of the rows and the order in a row do not matter"), or words such as "ties" or "for each
    group" in a sentence on any order; "" if there are none."""
    free = [sentence for sentence in _sentences(text) if _first(_ANY_ORDER, sentence)]
    of_two_orders = [sentence for sentence in free if len(re.findall(r"\border\b", sentence, re.IGNORECASE)) > 1]
    partly = [_first(_PARTLY_FREE, sentence) for sentence in free]
    return next((words for words in (*of_two_orders, *partly) if words), "")


def _demanded_order(any_order: str, rest: str) -> str:
    """The words that demand an order of the output, "" if none do. They may lie within the words that free it: in
    "print the teams sorted by points, equal teams in any order" all is one phrase, `any_order`. In the `rest` of the
    statement, only sentences on output count, and words that may mean an order ("by length") only if none frees it."""
    about_output = [each for each in _sentences(rest) if re.search(rf"\b{_PRINT}\b", each, re.IGNORECASE)]
    order_patterns = (*_ORDER_WORDS, *_REARRANGING_WORDS, *(() if any_order else _PERHAPS_ORDER_WORDS))
    demands = [_first(_ORDER_WORDS, any_order), *(_first(order_patterns, each) for each in about_output)]
    return next(filter(None, demands), "")


def multi_answer_phrase(statement: str) -> str | None:
    """The words of a statement that say that any of several answers is accepted; None if there are none. "If there are
    multiple answers, print the smallest" has one answer and is not meant."""
    return _first(_SUSPECT, " ".join(statement.split())) or None


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> str:
    """The earliest match of any of `patterns`, "" for none."""
    found = [match for pattern in patterns if (match := pattern.search(text)) is not None]
    return min(found, key=lambda match: match.start())[0] if found else ""


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?;])\s+", text)


def _tolerance(text: str) -> str:
    names = set()
    for sentence in _sentences(text.translate(_SUPERSCRIPTS)):
        if not (_ERROR.search(sentence) and _OF_AN_ANSWER.search(sentence)):
            continue
        absolute, relative = (re.search(rf"\b{kind}\b", sentence, re.IGNORECASE) for kind in ("absolute", "relative"))
        for found in _NUMBER.finditer(sentence):
            if found["factor"]:  # 5 * 10^-7
                return ""
            one = f"1e-{int(found['power'] or found['exponent'] or len(found['zeros'] or '') + 1)}"
            if bool(absolute) == bool(relative):
                names.add(f"float:{one}")
            else:
                names.add(f"float:{one},0" if absolute else f"float:0,{one}")
    return names.pop() if len(names) == 1 else ""
