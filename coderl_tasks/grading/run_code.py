"""The wire format of a sandbox's POST /run_code: a request put together, an answer taken apart."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run: `code` is the Python program, `files` lie in its working directory, `fetch_files` are sent back.

    `run_timeout_s` is wall clock; `memory_limit_mb` is per process, -1 for the server's own.
    """

    code: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: Sequence[str] = ()
    run_timeout_s: float = 10.0
    memory_limit_mb: int = -1
    stdin: str = ""

    def to_json(self) -> bytes:
        """The body of POST /run_code."""
        body = {
            "code": self.code,
            "language": "python",
            "run_timeout": self.run_timeout_s,
            "compile_timeout": self.run_timeout_s,
            "memory_limit_MB": self.memory_limit_mb,
            "stdin": self.stdin,
            "files": {path: base64.b64encode(data).decode() for path, data in self.files.items()},
            "fetch_files": list(self.fetch_files),
        }
        return json.dumps(body).encode()


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a server answered. All of it but `server` was in the program's hands and is to be taken as data.

    `status` is Finished, Error, TimeLimitExceeded, or AnswerTooLarge, where the answer was over the client's limit and
    nothing of it was kept. `files` holds those of `fetch_files` that the program left.
    """

    status: str
    return_code: int | None
    stdout: str
    stderr: str
    files: Mapping[str, bytes]
    server: str


class NoResult(ValueError):
    """An answer that holds no result of a run; the text says why."""


def parse_answer(answer: bytes, server: str) -> RunResult:
    """The result in the body of a 200 answer from `server`. Raises NoResult for a SandboxError and for nonsense."""
    try:
        body: dict[str, Any] = json.loads(answer)
        if body["status"] == "SandboxError":
            raise NoResult(f"SandboxError: {str(body.get('message'))[:200]}")
        run: dict[str, Any] = body["run_result"]
        files = {
            str(path): base64.b64decode(data, validate=True)
            for path, data in (body.get("files") or {}).items()
            if data is not None
        }
        return_code = run.get("return_code")
        return RunResult(
            status=str(run["status"]),
            return_code=return_code if isinstance(return_code, int) else None,
            stdout=str(run.get("stdout") or ""),
            stderr=str(run.get("stderr") or ""),
            files=files,
            server=server,
        )
    except NoResult:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise NoResult(f"a senseless answer ({type(error).__name__}: {error})") from error
