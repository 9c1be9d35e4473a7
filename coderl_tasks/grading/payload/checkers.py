"""Runs a checker on the outputs of programs, in a process of the sandbox that no program shares.

`request.json` has `id`, `seconds` (of CPU time) and `wall_seconds` for a test, `checker` and `tests`; a test has
`input`, `expected` and the program's `output` (base64). The checker has its `files`, as texts by name; a compiled one
is in `checker.z`, zlib's. `results.json` gets `id` and `results`: for each test its `end`, "passed", "failed" or
"fault", and a `reason`.
"""

# ruff: noqa: PTH100, PTH101, PTH102, PTH103, PTH110, PTH123

import binascii
import json
import re
import resource
import shutil
import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they stand above this text where it runs
    import os
    import signal

    from coderl_tasks.grading.payload.forked import in_forked_process

PASSED, FAILED, FAULT = "passed", "failed", "fault"
KATTIS_ENDS = {42: PASSED, 43: FAILED}
TESTLIB_ENDS = {0: PASSED, 1: FAILED, 2: FAILED, 8: FAILED}  # ok, wrong, presentation, end of file
TESTLIB_POINTS = 7  # which begin what it says
SAID_BYTES, FILE_BYTES = 2000, 64 << 20
Result = dict[str, str]


def main() -> None:
    with open("request.json", "rb") as file:
        request = json.load(file)
    checker = request["checker"]
    os.mkdir("checker")
    for name, text in checker["files"].items():
        with open(f"checker/{name}", "wb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
    if os.path.exists("checker.z"):
        with open("checker.z", "rb") as source, open("checker/program", "wb") as target:
            target.write(zlib.decompress(source.read()))
        os.chmod("checker/program", 0o755)
    limits = request["seconds"], request["wall_seconds"]
    results = [checked(checker, test, *limits) for test in request["tests"]]
    with open("results.json", "w") as target_text:
        json.dump({"id": request["id"], "results": results}, target_text)


def checked(checker: dict[str, Any], test: dict[str, str], seconds: float, wall_seconds: float) -> Result:
    """Runs a checker, in a process of its own, on one output of a program (base64). It gets `seconds` of CPU time, and
    `wall_seconds` in all. Returns {"end": the outcome, "reason"}."""
    # Odd bytes are replaced: a checker in Python could not read them.
    output = binascii.a2b_base64(test["output"]).decode("utf-8", "replace").encode()
    folder = os.path.abspath("test")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(f"{folder}/feedback")
    for name, data in (
        ("input", test["input"].encode("utf-8", "surrogatepass")),
        ("answer", test["expected"].encode("utf-8", "surrogatepass")),
        ("output", output),
    ):
        with open(f"{folder}/{name}", "wb") as file:
            file.write(data)

    def work(writing: int) -> None:
        in_own_process(checker, folder, writing, seconds)

    said, in_time, code = in_forked_process(work, wall_seconds, SAID_BYTES)
    if not in_time or code == -signal.SIGXCPU:
        return {"end": FAULT, "reason": "the checker takes too long"}
    result = result_of(checker["protocol"], code, said, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def in_own_process(checker: dict[str, Any], folder: str, writing: int, seconds: float) -> None:
    """Runs the checker on the files input, output and answer in `folder`, in this forked process. What it prints goes
    to `writing`, a descriptor. In the protocol "check" it is a Python function, whose result goes there as JSON; in
    "kattis" and "testlib" it is a program, which replaces this process."""
    os.setsid()  # so that it is killed with all that it starts
    whole = int(seconds) + 1  # here SIGXCPU comes, and a second later SIGKILL
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    checkers_folder = os.path.abspath("checker")
    null = os.open(os.devnull, os.O_RDWR)
    if checker["protocol"] == "check":
        for descriptor in range(3):
            os.dup2(null, descriptor)
        os.chdir(checkers_folder)
        os.write(writing, json.dumps(value_of(checkers_folder, folder)).encode())
        return
    command = [f"{checkers_folder}/program"]
    if checker["language"] == "python":
        command = [sys.executable, f"{checkers_folder}/{checker['main']}"]
    if checker["protocol"] == "kattis":
        arguments = [f"{folder}/input", f"{folder}/answer", f"{folder}/feedback/", *checker["flags"]]
    else:
        arguments = [f"{folder}/input", f"{folder}/output", f"{folder}/answer", *checker["flags"]]
    os.dup2(os.open(f"{folder}/output", os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.closerange(3, 256)
    os.chdir(folder)
    os.execv(command[0], [*command, *arguments])


def value_of(checkers_folder: str, folder: str) -> list[Any]:
    """What `check` of checker.py here returns for the files in `folder`: ["value", float] or ["error", text]."""
    texts = []
    for name in ("input", "output", "answer"):
        with open(f"{folder}/{name}", "rb") as file:
            texts.append(file.read().decode("utf-8", "replace"))
    sys.path.insert(0, checkers_folder)
    sys.setrecursionlimit(20_000)  # for nested outputs, and below for long numbers
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    try:
        with open("checker.py", "rb") as file:
            code = compile(file.read(), "checker.py", "exec", dont_inherit=True)
        names: dict[str, Any] = {"__name__": "checker", "__file__": "checker.py"}
        exec(code, names)
        value = names["check"](*texts)
        # numpy's too, but no texts.
        if isinstance(value, (str, bytes)) or not hasattr(value, "__float__") or float(value) != float(value):
            return ["error", f"check returned {value!r:.200}, which is neither a bool nor a number"]
        return ["value", float(value)]
    except BaseException as error:
        return ["error", f"{type(error).__name__}: {error}"[:300]]


def result_of(protocol: str, code: int, said: bytes, folder: str) -> Result:
    """What a checker has decided: by what it wrote in the protocol "check", else by its exit code."""
    ended = f"ended by signal {-code}" if code < 0 else f"exit status {code}"
    if protocol == "check":
        try:
            kind, value = json.loads(said)
        except ValueError:
            return {"end": FAULT, "reason": f"check ended its process ({ended})"}
        if kind == "error":
            return {"end": FAULT, "reason": str(value)}
        return {"end": PASSED if value >= 1 else FAILED, "reason": "" if value >= 1 else f"check returned {value:g}"}
    ends = KATTIS_ENDS if protocol == "kattis" else TESTLIB_ENDS
    if protocol == "kattis":
        try:
            with open(f"{folder}/feedback/judgemessage.txt", "rb") as file:
                said = file.read(SAID_BYTES) or said
        except OSError:
            pass  # a validator need not say anything
    elif code == TESTLIB_POINTS:
        points = re.search(rb"points\s+([0-9.]+)", said)
        code = 0 if points is not None and float(points[1]) >= 1 else 1
    end = ends.get(code, FAULT)
    line = said.decode("utf-8", "replace").strip().partition("\n")[0][:200]
    reason = line or ("" if end == FAILED else ended) or "the checker says no more"
    return {"end": end, "reason": "" if end == PASSED else reason}


if __name__ == "__main__":
    main()
