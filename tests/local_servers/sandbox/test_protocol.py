"""The HTTP door: Sandbox Fusion's shapes, limits of a request, the queue."""

import base64
import json
import math
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local_servers.sandbox.job_files import read_files
from tests.local_servers.malformed_requests import answers_to_malformed_requests
from tests.local_servers.sandbox.sandbox_servers import KEY, PREPARED, Sandbox, serving

RUN = {"code": "print(1)", "language": "python"}


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def decode(text: str) -> str:
    return base64.b64decode(text).decode()


def test_ping_answers_as_sandbox_fusion_does(sandbox: Sandbox) -> None:
    assert sandbox.request("/v1/ping")[::2] == (200, "pong")


def test_a_program_gets_its_input_and_files_and_gives_back_files(any_sandbox: Sandbox) -> None:
    answer = any_sandbox.run(
        "import sys\n"
        "text = sys.stdin.read() + open('in/data.txt').read()\n"
        "open('result.txt', 'w').write(text.upper())\n"
        "print(len(text)); print('warned', file=sys.stderr)",
        stdin="ab\n",
        files={"in/data.txt": encode("cd"), "absent.txt": None},
        fetch_files=["result.txt", "never-written.txt"],
        compile_timeout=1,
        run_timeout=20,
        memory_limit_MB=256,
    )
    run = answer.pop("run_result")
    assert 0 < run.pop("execution_time") < 20
    assert run == {"status": "Finished", "return_code": 0, "stdout": "5\n", "stderr": "warned\n"}
    assert answer.pop("files") == {"result.txt": encode("AB\nCD")}
    assert answer == {"status": "Success", "message": "", "compile_result": None, "executor_pod_name": None}


@pytest.mark.parametrize(
    ("code", "return_code", "said"),
    [
        ("exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("raise SystemExit('bye')", 1, "bye\n"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.abort()", -6, ""),
        ("x = = 1", 1, "SyntaxError: invalid syntax\n"),
        ("def f():\n    1 / 0\nf()", 1, "ZeroDivisionError: division by zero\n"),
        ("import atexit, sys\natexit.register(lambda: sys.stderr.write('last'))", 0, "last"),
    ],
)
def test_a_program_ends_as_under_an_ordinary_interpreter(
    sandbox: Sandbox, code: str, return_code: int, said: str
) -> None:
    answer = sandbox.run(code)
    assert answer["status"] == ("Success" if return_code == 0 else "Failed")
    assert answer["run_result"]["status"] == "Finished"
    assert answer["run_result"]["return_code"] == return_code
    assert answer["run_result"]["stderr"].endswith(said)


def test_a_traceback_shows_the_program_alone(sandbox: Sandbox) -> None:
    stderr = sandbox.run("def f():\n    1 / 0\nf()")["run_result"]["stderr"]
    assert stderr.count("File ") == 2
    assert stderr.count("__main__.py") == 2
    assert "    1 / 0\n" in stderr


def test_the_program_is_main(any_sandbox: Sandbox) -> None:
    code = "import __main__, sys\nx = 5\nprint(__name__, __main__.x, __file__ == sys.argv[0], len(sys.argv))"
    assert any_sandbox.stdout(code) == "__main__ 5 True 1\n"


def test_the_prepared_program_is_as_new_in_every_run(any_sandbox: Sandbox) -> None:
    code = "print(__name__, runs == [os.getpid()], sys.modules['__main__'].runs is runs, sys.argv == [__file__])"
    for _ in range(3):
        assert any_sandbox.stdout(PREPARED, stdin=code) == "__main__ True True True\n"
    # Any other text is any other program, with the same meaning.
    assert any_sandbox.stdout(PREPARED + "#", stdin=code) == "__main__ True True True\n"


def test_only_the_prepared_program_is_the_first_process_of_its_run(sandbox: Sandbox) -> None:
    first = [sandbox.stdout(program, stdin="print(os.getpid() == 1)") for program in (PREPARED, PREPARED + "#")]
    assert first == ["True\n", "False\n"]


@pytest.mark.parametrize(
    ("body", "stdout"),
    [
        (f'{{"code": {json.dumps(PREPARED)}, "language": "python", "stdin": "print(1)"}}', "1\n"),
        (f'{{"language": "python", "stdin": "print(2)", "code": {json.dumps(PREPARED)}}}', "2\n"),
        (f'{{"code": {json.dumps(PREPARED)}, "language": "python", "code": "print(3)"}}', "3\n"),
        (f'{{"code": {json.dumps(PREPARED)[:-1]} # ", "language": "python", "stdin": "print(4)"}}', "4\n"),
        (f'{{"code": {json.dumps(PREPARED)}, "language": "python"', None),
        (f'{{"code": {json.dumps(PREPARED)}, }}', None),
    ],
    ids=["first", "last", "twice", "longer", "cut", "nothing else"],
)
def test_the_prepared_program_is_recognized_in_json_that_means_it(
    sandbox: Sandbox, body: str, stdout: str | None
) -> None:
    status, _, answer = sandbox.request("/run_code", body.encode())
    assert status == (400 if stdout is None else 200)
    assert (answer["run_result"] or {}).get("stdout") == stdout


@pytest.mark.parametrize(
    ("code", "return_code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise SystemExit('bye')", 1, "bye\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("os._exit(7)", 7, ""),
        ("import ctypes; ctypes.string_at(0)", -11, ""),
    ],
)
def test_the_prepared_program_ends_as_others_do(any_sandbox: Sandbox, code: str, return_code: int, said: str) -> None:
    run = any_sandbox.run(PREPARED, stdin=code)["run_result"]
    assert (run["status"], run["return_code"]) == ("Finished", return_code)
    assert run["stderr"].endswith(said)


def test_a_time_limit_ends_the_run(any_sandbox: Sandbox) -> None:
    answer = any_sandbox.run("print('begun', flush=True)\nwhile True: pass", run_timeout=0.3)
    assert answer["status"] == "Failed"
    run = answer["run_result"]
    assert run["execution_time"] >= 0.3
    assert (run["status"], run["return_code"], run["stdout"]) == ("TimeLimitExceeded", None, "begun\n")


def test_much_output_comes_whole(sandbox: Sandbox) -> None:
    assert sandbox.stdout("print('0123456789' * 100_000)") == "0123456789" * 100_000 + "\n"


def test_output_beyond_the_cap_is_dropped_and_the_program_runs_on(sandbox: Sandbox) -> None:
    code = "import sys\nfor _ in range(20): sys.stdout.write('x' * (1 << 20))\nsys.stderr.write('done')"
    run = sandbox.run(code)["run_result"]
    assert len(run["stdout"]) == 16 << 20
    assert run["stderr"] == "done"


def test_output_that_is_not_utf8_is_still_text(sandbox: Sandbox) -> None:
    assert sandbox.stdout(r"import sys; sys.stdout.buffer.write(b'a\xffb')") == "a�b"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"code": "1", "language": "cpp"}, "'cpp' is not available here, only 'python'"),
        ({"code": "1"}, "only 'python'"),
        ({"language": "python"}, "`code`"),
        ([], "`code`"),
        ({"code": "1", "language": "python", "run_timeout": 0}, "run_timeout"),
        ({"code": "1", "language": "python", "run_timeout": "5"}, "run_timeout"),
        *[
            ({"code": "1", "language": "python", name: value}, name)
            for name in ("run_timeout", "memory_limit_MB")
            for value in (2**70, 10**400, 1e308, math.inf, -math.inf, math.nan, True, "5", [1], {"a": 1})
        ],
        ({"code": "1", "language": "python", "run_timeout": -(10**400)}, "run_timeout"),
        ({"code": "1", "language": "python", "files": {"../x": ""}}, "'../x'"),
        ({"code": "1", "language": "python", "files": {"/etc/x": ""}}, "'/etc/x'"),
        ({"code": "1", "language": "python", "files": {"x": "?"}}, "'x'"),
        ({"code": "1", "language": "python", "fetch_files": "x"}, "fetch_files"),
    ],
)
def test_a_request_that_cannot_be_run_says_why(sandbox: Sandbox, body: object, said: str) -> None:
    status, _, answer = sandbox.request("/run_code", body)
    assert (status, answer["status"], answer["run_result"]) == (400, "SandboxError", None)
    assert said in answer["message"]


@pytest.mark.parametrize("memory", [-(10**400), -1e308, -1, 0, 0.5, None, 1 << 24])
def test_every_other_memory_limit_is_one_to_run_with(sandbox: Sandbox, memory: object) -> None:
    fields = {} if memory is None else {"memory_limit_MB": memory}
    assert sandbox.stdout("print(1)", **fields) == "1\n"


@pytest.mark.parametrize(
    "names",
    [
        ["x" * 256],
        ["\ud800"],
        ["a", "a/b"],
        ["a/b", "a"],
        ["__main__.py/a"],
        ["a/" * 101 + "b"],
        ["a/" * 100_000 + "b"],
    ],
)
def test_files_that_cannot_be_placed_cost_no_worker(any_sandbox: Sandbox, names: list[str]) -> None:
    any_sandbox.stdout("print(1)")
    before = any_sandbox.workers()
    status, _, answer = any_sandbox.request("/run_code", RUN | {"files": dict.fromkeys(names, "")})
    assert (status, answer["status"], answer["run_result"]) == (400, "SandboxError", None)
    assert "cannot be placed: " in answer["message"]
    assert any_sandbox.stdout("print(1)") == "1\n"
    assert any_sandbox.workers() == before


@pytest.mark.parametrize(
    ("files", "fetch"), [({f"f{n}": "" for n in range(9_000)}, ["out"] * 1001), ({"x" * (1 << 20): ""}, ["out"])]
)
def test_names_are_bounded(sandbox: Sandbox, files: dict[str, str], fetch: list[str]) -> None:
    status, _, answer = sandbox.request("/run_code", RUN | {"files": files, "fetch_files": fetch})
    assert status == 400 and "at most 10000 files" in answer["message"]


def test_a_file_system_full_of_folders_is_the_names_fault(sandbox: Sandbox) -> None:
    names = [f"{n}/{'/'.join('abcdefghij')}" for n in range(2_000)]
    status, _, answer = sandbox.request("/run_code", RUN | {"files": dict.fromkeys(names, "")})
    assert status == 400 and "No space left on device" in answer["message"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        (b"[" * 100_000, {}, 400, "recursion"),
        (b"1" * 5000, {}, 400, "digits"),
        (b'{"code": "1", "language": "python"}', {"Origin": "null"}, 403, "web pages"),
        (b'{"code": "1", "language": "python"}', {"Host": "evil.example"}, 400, "evil.example"),
        (b'{"code": "1", "language": "python"}', {"Content-Type": "text/plain"}, 415, "application/json"),
    ],
)
def test_what_is_no_request_of_a_client_is_refused(
    sandbox: Sandbox, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    found, _, answer = sandbox.request("/run_code", body, headers)
    assert found == status and said in str(answer)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.symlink('/etc/passwd', 'out')",
        "import os; open('real', 'w').write('x'); os.symlink('real', 'out')",
        "import os; os.mkfifo('out')",
        "import os; os.mkdir('out')",
        "open('out', 'wb').truncate(100 << 20)",
    ],
)
def test_only_regular_files_of_bounded_size_are_fetched(any_sandbox: Sandbox, code: str) -> None:
    assert any_sandbox.run(code, fetch_files=["out"])["files"] == {}


def test_no_link_on_the_way_to_a_file_is_followed(any_sandbox: Sandbox) -> None:
    code = "import os\nos.mkdir('a'); open('a/f', 'w').write('x'); os.symlink('a', 'b'); os.symlink('/etc', 'c')"
    names = ["a/f", "b/f", "c/passwd", "../../etc/passwd", "/etc/passwd"]
    assert list(any_sandbox.run(code, fetch_files=names)["files"]) == ["a/f"]


def test_files_are_fetched_whatever_rights_the_program_left(any_sandbox: Sandbox) -> None:
    code = (
        "import os\n"
        "os.makedirs('a/b')\n"
        "for name in ('f', 'a/b/f'): open(name, 'w').write(name); os.chmod(name, 0)\n"
        "os.mkfifo('pipe', 0); os.symlink('f', 'link'); os.symlink('a', 'c'); os.chmod('a/b', 0o400)\n"
        "for folder in ('a', '.'): os.chmod(folder, 0)"
    )
    names = ["a/b/f", "pipe", "link", "c/b/f", "a", "f/g", "f"]
    files = any_sandbox.run(code, fetch_files=names)["files"]
    assert files == {name: encode(name) for name in ("a/b/f", "f")}
    assert any_sandbox.stdout("print(1)") == "1\n"


def test_a_file_that_this_machine_cannot_open_does_not_count_as_missing(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    root = os.open(tmp_path, os.O_RDONLY)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (root + 1, limits[1]))  # all below `root` are open
    try:
        with pytest.raises(OSError, match="Too many open files"):
            read_files(root, str(tmp_path), ["f"], budget=10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read_files(root, str(tmp_path), ["f", "g", "d/" * 2000 + "f"], budget=10) == {"f": b"x"}
    os.close(root)


def test_requests_run_side_by_side_and_queue(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda n: sandbox.stdout(f"print({n})"), range(24)))
    assert answers == [f"{n}\n" for n in range(24)]


def test_a_full_queue_answers_503_and_a_client_that_hangs_up_frees_its_slot() -> None:
    import http.client
    import json

    with serving("--concurrency=1", "--queue=2") as server:
        body = json.dumps({"code": "while True: pass", "language": "python", "run_timeout": 600})
        clients = []
        for running, queued in [(1, 0), (1, 1), (1, 2)]:
            client = http.client.HTTPConnection(server.url.removeprefix("http://"))
            client.request("POST", "/run_code", body, {"Content-Type": "application/json"})
            clients.append(client)
            server.wait_until(lambda info, now=(running, queued): (info["running"], info["queued"]) == now)  # type: ignore[misc]
        status, headers, answer = server.request("/run_code", {"code": "1", "language": "python"})
        assert status == 503
        assert int(headers["Retry-After"]) >= 1
        assert "busy" in answer["detail"]
        for client in clients:
            client.close()
        server.wait_until(lambda info: (info["running"], info["queued"]) == (0, 0))
        assert server.stdout("print(1)") == "1\n"


def test_code_that_comes_again_runs_as_it_did(any_sandbox: Sandbox) -> None:
    code = "import sys\ndef f(): raise ValueError(sys.stdin.read())\nprint(open(__file__).read() == SOURCE)\nf()"
    code = f"SOURCE = {code!r}\n{code}".replace("== SOURCE", ".endswith(SOURCE)")
    runs = [any_sandbox.run(code, stdin=f"run {n}")["run_result"] for n in range(7)]
    assert [(run["stdout"], run["return_code"]) for run in runs] == [("True\n", 1)] * 7
    for n, run in enumerate(runs):
        assert f"ValueError: run {n}" in run["stderr"] and "line 3, in f" in run["stderr"]


def test_code_that_does_not_compile_may_come_again(any_sandbox: Sandbox) -> None:
    for code in ("def f(:", "x = " + "(" * 3000 + ")" * 3000):
        errors = {any_sandbox.run(code)["run_result"]["stderr"].rpartition("\n  ")[2] for _ in range(7)}
        assert len(errors) == 1 and "Error" in errors.pop()
    assert any_sandbox.stdout("print(1)") == "1\n"


def test_malformed_requests_are_refused_and_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert set(answers_to_malformed_requests(server.url, "/run_code", KEY)) == {400}
        assert server.stdout("print(1)") == "1\n"
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("sandbox: isolation by")
