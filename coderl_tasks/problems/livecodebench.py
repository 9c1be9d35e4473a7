"""LiveCodeBench's rows (Jain et al. 2024, arXiv:2403.07974): public tests as JSON, private ones as JSON, or as base64
of zlib of a pickled JSON text. Anyone may have written a file, so the pickle is read as a list of operations, of which
those for one text are admitted, and nothing is ever unpickled."""

import base64
import binascii
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from coderl_tasks.problems.problem import RowDropped
from coderl_tasks.problems.raw_files import MAX_ROW_BYTES
from coderl_tasks.problems.raw_tests import decode_json

_COLUMNS = ("question_content", "public_test_cases", "private_test_cases")
_TEXT = ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_AROUND_IT = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")


def with_livecodebench(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of LiveCodeBench with the columns that other rows have; any other row as it is. Raises RowDropped:
    bad_private_tests, tests_not_json."""
    if any(row.get(name) is None for name in _COLUMNS):
        return row
    public, private = decode_json(row["public_test_cases"]), row["private_test_cases"]
    if isinstance(private, str) and not private.lstrip().startswith("["):
        private = private_tests_text(private)
    private = decode_json(private)
    if not isinstance(public, list) or not isinstance(private, list):
        raise RowDropped("bad_private_tests", "the test cases are no lists")
    columns: dict[str, Any] = {"question": row["question_content"], "tests": [*public, *private]}
    return {**row, **columns, "problem_id": row.get("problem_id") or row.get("question_id")}


def private_tests_text(packed: str) -> str:
    """The text in base64 of zlib of a pickle. Raises RowDropped for a pickle of anything else, and for more than a row
    may hold."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(packed, validate=True), MAX_ROW_BYTES)
        if unpacking.unconsumed_tail:
            raise ValueError(f"more than {MAX_ROW_BYTES / 2**20:.0f} MiB")
        texts = []
        for operation, value, _ in pickletools.genops(data):
            if operation.name in _TEXT:
                texts.append(value)
            elif operation.name not in _AROUND_IT:
                raise ValueError(f"a pickle with the operation {operation.name}, which a text does not need")
        if len(texts) != 1 or not isinstance(texts[0], str):
            raise ValueError(f"a pickle of {len(texts)} texts")
    except (ValueError, binascii.Error, zlib.error) as error:
        raise RowDropped("bad_private_tests", f"private_test_cases is no packed text: {error}") from None
    return texts[0]
