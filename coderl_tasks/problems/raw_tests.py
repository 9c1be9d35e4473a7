"""Raw tests, in any of the data set's shapes, to normalised tests of one kind.

    taco            {"inputs": [...], "outputs": [...][, "fn_name"]}
    lcbv5           [{"input", "output", "testtype": "stdin" | "functional"}], metadata.func_name
    primeintellect  [{"type": "stdin_stdout" | "function_call", "input", "output"[, "fn_name"]}]
    codeforces      [{"input", "output"}]
    assertions      "assert f(1) == 2", ["assert f(1) == 2", ...], a file of pytest functions

Each but the last as JSON text or as native values. A problem whose tests are not all of one kind is dropped, and so is
one with any test that cannot be read without guessing: a misread test would punish right programs. How values are read:

1. stdin: a string is the text itself; a number its digits; a flat list one line per item, whether or not it has its
   own line end; an inner list one line.
2. call, native input: a list holds the arguments, anything else is the only argument. Text input: JSON values, one
   per argument and line (LiveCodeBench), or one JSON array of the arguments (the other sources).
3. call, output: text is JSON where the inputs are text too. Beside native inputs it is the returned string itself,
   unless all outputs are JSON and not all of them numbers. In all shapes but lcbv5's functional tests (after APPS),
   outputs that are all one-element lists are the wrapped return values.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coderl_tasks.problems.assertion_tests import entry_point_of, scripts_of, with_import
from coderl_tasks.problems.problem import Kind, RowDropped, Test
from coderl_tasks.problems.raw_files import json_or_text

KINDS: dict[str, Kind] = {
    "stdin": "stdin", "stdin_stdout": "stdin", "functional": "call", "function_call": "call", "assert": "assert",
}  # fmt: skip
_LINE_END = re.compile(r"\r?\n\Z")


class TestSet(NamedTuple):
    """A problem's tests; `entry_point` is the function's name, "" for `stdin`. Assertions may call others as well."""

    kind: Kind
    entry_point: str
    tests: tuple[Test, ...]


class _RawTest(NamedTuple):
    type_name: str | None
    function: str | None
    input: Any
    output: Any


def normalize_tests(raw_tests: Any, metadata: Any = None) -> list[dict[str, Any]]:
    """Tests of any raw shape in LiveCodeBench's shape, which is accepted as input too and needs no metadata. Each is
    {"input", "output", "testtype": "stdin" | "functional", "metadata": {} | {"func_name"}}, input and output being
    text; a functional input has one JSON value per argument, each on its line. Raises RowDropped with the reason."""
    test_set = parse_tests(raw_tests, metadata)
    is_call = test_set.kind == "call"
    return [
        {
            "input": "\n".join(map(_to_json, json.loads(test.input))) if is_call else test.input,
            "output": test.expected,
            "testtype": "functional" if is_call else test_set.kind,
            "metadata": {"func_name": test_set.entry_point} if is_call else {},
        }
        for test in test_set.tests
    ]


def parse_tests(raw_tests: Any, *metadata: Any) -> TestSet:
    """The tests of one raw row. `metadata` are mappings of the row, or their JSON text, that may name the function.

    Raises RowDropped: no_tests, tests_not_json, unknown_test_shape, unknown_test_type, unequal_inputs_outputs,
    mixed_test_kinds, several_entry_points, no_entry_point, bad_entry_point, stdin_value_not_text, call_input_not_json,
    call_output_not_json, test_value_not_json, bad_assertion.
    """
    try:
        decoded = decode_json(raw_tests)  # once: it may be 200 MB
    except RowDropped:  # a script is no JSON
        if (scripts := scripts_of(raw_tests)) is None:
            raise
        return _assertions(scripts)
    if (scripts := scripts_of(decoded)) is not None:
        return _assertions(scripts)
    raw = _raw_tests(decoded)
    if not raw:
        raise RowDropped("no_tests")
    own_names = {test.function for test in raw if test.function}  # before any that the metadata name
    names = own_names or {name for each in metadata if (name := _function_named(as_mapping(each))) is not None}
    # If some tests name their function themselves, a test that names none is a stdin test.
    kinds = {_kind(test, has_function=bool(test.function if own_names else names)) for test in raw}
    if kinds == {"assert"}:  # such a test has its script as `output`, and no input
        return _assertions([str(test.output) for test in raw])
    if len(kinds) > 1:
        raise RowDropped("mixed_test_kinds", "some tests are of standard input, others of a function")
    if kinds == {"stdin"}:
        return TestSet("stdin", "", tuple(Test(_stdin_text(test.input), _stdin_text(test.output)) for test in raw))
    if not names:
        raise RowDropped("no_entry_point", "tests of a function that nothing names (fn_name, func_name or entry_point)")
    if len(names) > 1:
        raise RowDropped("several_entry_points", ", ".join(sorted(names)))
    (name,) = names
    if not name.isidentifier():
        raise RowDropped("bad_entry_point", name)
    return TestSet("call", name, _call_tests(raw))


def as_mapping(metadata: Any) -> Mapping[str, Any]:
    """`metadata` as a mapping: itself, what its JSON text holds, or an empty one where it is neither."""
    metadata = json_or_text(metadata) if isinstance(metadata, str) else metadata
    return metadata if isinstance(metadata, Mapping) else {}


def decode_json(raw_tests: Any) -> Any:
    """`raw_tests` with JSON text decoded, even if encoded twice; None for blank text. Raises RowDropped."""
    for _ in range(2):
        if not isinstance(raw_tests, str):
            break
        if not raw_tests.strip():
            return None
        try:
            raw_tests = json.loads(raw_tests)
        except (ValueError, RecursionError) as error:
            raise RowDropped("tests_not_json", f"tests are not JSON, as json.dumps writes it: {error}") from None
    return raw_tests


def _assertions(scripts: list[str]) -> TestSet:
    entry_point = entry_point_of(scripts)
    return TestSet("assert", entry_point, tuple(Test("", script) for script in with_import(scripts, entry_point)))


def _raw_tests(value: Any) -> list[_RawTest]:
    if value is None:
        return []
    if isinstance(value, Mapping) and "inputs" in value and "outputs" in value:
        inputs, outputs = value["inputs"], value["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list):
            raise RowDropped("unknown_test_shape", "inputs and outputs are not lists")
        if len(inputs) != len(outputs):
            raise RowDropped("unequal_inputs_outputs", f"{len(inputs)} inputs, {len(outputs)} outputs")
        name = _function_named(value, ["fn_name"])
        return [_RawTest(None, name, given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]
    items = [value] if isinstance(value, Mapping) else value
    if not isinstance(items, list):
        raise RowDropped("unknown_test_shape", type(value).__name__)
    needed, raw = "a test needs input and output", []
    for item in items:
        if not isinstance(item, Mapping):
            raise RowDropped("unknown_test_shape", f"{needed}; it is a {type(item).__name__}")
        if "input" not in item or "output" not in item:
            found = ", ".join(map(str, item)) or "none"
            raise RowDropped("unknown_test_shape", f"{needed} (or inputs and outputs); keys: {found}")
        function = _function_named(item, ["fn_name"]) or _function_named(as_mapping(item.get("metadata")))
        raw.append(_RawTest(item.get("testtype") or item.get("type"), function, item["input"], item["output"]))
    return raw


def _function_named(
    values: Mapping[str, Any], keys: Sequence[str] = ("func_name", "fn_name", "entry_point")
) -> str | None:
    names = (values.get(key) for key in keys)
    return next((name.strip() for name in names if isinstance(name, str) and name.strip()), None)


def _kind(test: _RawTest, *, has_function: bool) -> Kind:
    if test.type_name is None:
        return "call" if has_function else "stdin"
    if not isinstance(test.type_name, str) or test.type_name not in KINDS:
        raise RowDropped("unknown_test_type", f"a test of type {test.type_name}; read are: {', '.join(KINDS)}")
    return KINDS[test.type_name]


def _stdin_text(value: Any) -> str:
    lines = value if isinstance(value, list) else [value]
    items_by_line = (line if isinstance(line, list) else [line] for line in lines)
    texts = [" ".join(map(_stdin_scalar, items)) for items in items_by_line]
    # A line that brings its own end would else be followed by a blank one.
    return "\n".join([*(_LINE_END.sub("", text) for text in texts[:-1]), *texts[-1:]])


def _stdin_scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _to_json(value)
    raise RowDropped("stdin_value_not_text", type(value).__name__)


def _call_tests(raw: list[_RawTest]) -> tuple[Test, ...]:
    by_line = all(test.type_name == "functional" for test in raw)
    text_inputs = all(isinstance(test.input, str) for test in raw)
    # As text at once, test by test: numbers take ten times the memory that their digits take.
    inputs = [_to_json(_arguments(test.input, as_text=text_inputs, by_line=by_line)) for test in raw]
    outputs = [test.output for test in raw]
    if all(isinstance(output, str) for output in outputs):
        try:
            decoded = [json.loads(output) for output in outputs]
        except (ValueError, RecursionError) as error:
            if by_line:
                raise RowDropped("call_output_not_json", str(error)) from None
            decoded = outputs
        # Beside native inputs digits do not tell whether 12 or the text "12" is returned, so they stay text; an output
        # that can only be JSON decides it for all of them.
        numbers_only = all(isinstance(value, int | float) and not isinstance(value, bool) for value in decoded)
        outputs = decoded if text_inputs or by_line or not numbers_only else outputs
    # APPS wraps every returned value in a list; LiveCodeBench does not. One unwrapped output shows that none is.
    if not by_line and all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [output[0] for output in outputs]
    return tuple(Test(arguments, _to_json(output)) for arguments, output in zip(inputs, outputs, strict=True))


def _arguments(value: Any, *, as_text: bool, by_line: bool) -> list[Any]:
    # The same text means two things: a list is one argument in LiveCodeBench, all arguments elsewhere.
    if as_text and by_line:
        return _json_values(value)
    if as_text:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return _json_values(value)
    return value if isinstance(value, list) else [value]


def _json_values(text: str) -> list[Any]:
    """The JSON values written one after the other in `text`, normally one per line."""
    decoder = json.JSONDecoder()
    values: list[Any] = []
    rest = text.strip()
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            raise RowDropped("call_input_not_json", str(error)) from None
        values.append(value)
        following = rest[end:]
        rest = following.lstrip()
        # Else `1-2` would be taken for the two arguments 1 and -2.
        if rest and len(rest) == len(following):
            raise RowDropped("call_input_not_json", f"two values without a space between them: {text[:80]!r}")
    return values


def _to_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RowDropped("test_value_not_json", str(error)) from None
