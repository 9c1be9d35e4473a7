"""Runs in the sandbox, beside a user's reward.py: rewards of many completions, one process each.

`request.json` has `id`, `ground_truth`, `completions`, `cpu_limit_s` and `wall_limit_s`; `results.json` gets `id` and
`results`, one of {"reward": number} and {"error": text} per completion, or `fault` where reward.py cannot be used. With
`turn` in the request its function respond is called, and in place of rewards come replies: {"reply": text or null}.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they stand above this text where it runs
    import os
    import signal
    from collections.abc import Callable

    from coderl_tasks.grading.payload.forked import in_forked_process

FILE = "reward.py"
SHOWN_CHARS = 4000
MOST = 1e9
"""More in size is no reward: the squares of a group's deviations overflow, and its advantages are NaN."""


def main() -> None:
    request = json.loads(Path("request.json").read_text())
    report: dict[str, Any] = {"id": request["id"]}
    try:
        name = "compute_reward" if request.get("turn") is None else "respond"
        # A module of this name, so that what it defines can be pickled and its own imports of it work.
        sys.path.insert(0, str(Path.cwd()))
        import reward

        if not callable(getattr(reward, name, None)):
            raise TypeError(f"{FILE} defines no function {name}")
        function = getattr(reward, name)
        if not request["completions"]:  # the file is only tried
            require_signature(function, name)
    except BaseException as error:  # an import may fail with whatever it likes, sys.exit included
        report["fault"] = shown(error)
    else:
        report["results"] = [result_of(function, text, request) for text in request["completions"]]
    Path("results.json").write_text(json.dumps(report))


def require_signature(function: Callable[..., Any], name: str) -> None:
    """Raises TypeError if the user's function of this name cannot be called with its arguments."""
    import inspect  # slow to import, and rewards need none

    try:
        signature = inspect.signature(function)
    except ValueError:  # not every callable has one
        return
    arguments = ["completion", "ground_truth", "turn"][: 3 if name == "respond" else 2]
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(f"{FILE}: {name} has to take ({', '.join(arguments)}): {error}") from None


def result_of(function: Callable[..., Any], text: str, request: dict[str, Any]) -> dict[str, Any]:
    """One completion's result, {"reward": number} or {"error": text}, from a forked process: what a call leaves behind,
    the next one does not see. `request` has `ground_truth` and the limits, and for respond the number of its `turn`."""

    def work(writing: int) -> None:
        os.setsid()  # a group of its own, which is killed as a whole
        null_device = os.open(os.devnull, os.O_RDWR)
        for number in range(3):  # what the function prints is nobody's
            os.dup2(null_device, number)
        # CPU seconds: time that others take of the machine is not the function's.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_limit_s"])
        data = json.dumps(called(function, text, request["ground_truth"], request.get("turn"))).encode()
        with os.fdopen(writing, "wb") as file:
            file.write(data)

    data, in_time, ended = in_forked_process(work, request["wall_limit_s"])
    if data:
        try:
            result: dict[str, Any] = json.loads(data)
            return result
        except ValueError:
            pass  # cut off, as it was killed: the reason follows
    if ended == -signal.SIGPROF:  # the timer above
        return {"error": f"time-out: more than {request['cpu_limit_s']:g} s of CPU time"}
    if not in_time:
        return {"error": f"time-out: no reward after {request['wall_limit_s']:g} s"}
    how = f"signal {-ended}" if ended < 0 else f"exit status {ended}"
    return {"error": f"{function.__name__} ended its process ({how})"}


def called(function: Callable[..., Any], text: str, ground_truth: str, turn: "int | None") -> dict[str, Any]:
    """Calls the user's function on a completion: with a `turn` it is `respond`, whose {"reply": text or None} continues
    the conversation, else `compute_reward`, which gives {"reward": number}. {"error": text} for anything else."""
    if turn is not None:
        try:
            reply = function(text, ground_truth, turn)
        except BaseException as error:
            return {"error": shown(error)}
        if reply is not None and not isinstance(reply, str):
            return {"error": f"respond returned {reply!r:.200}, which is neither text nor None"}
        # A lone surrogate, as of a cut emoji in JSON, is no text that a file can hold.
        return {"reply": reply and reply.encode("utf-8", "backslashreplace").decode()}
    try:
        value = function(text, ground_truth)
        # numpy's numbers too; but a text that reads like a number is a slip.
        if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__float__"):
            return {"error": f"compute_reward returned {value!r:.200}, which is no number"}
        number = float(value)
    except BaseException as error:
        return {"error": shown(error)}
    if not abs(number) <= MOST:
        return {"error": f"compute_reward returned {number}: a reward is finite, from -{MOST:.0e} to {MOST:.0e}"}
    return {"reward": number}


def shown(error: BaseException) -> str:
    """The traceback from the user's file on, its end where it is long."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and not trace.tb_frame.f_code.co_filename.endswith(FILE):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).strip()[-SHOWN_CHARS:]
    return text.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    main()
