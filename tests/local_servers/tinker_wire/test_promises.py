"""Promises keep answers within bounds, and never let a request be computed twice."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from local_servers.tinker.models import SequencedQueue
from local_servers.tinker.promises import Answer, PromiseTable, settle
from local_servers.tinker.records import check_name, check_run_id, parse_path
from local_servers.tinker.refusal import Refusal


async def answered(table: PromiseTable, request_id: str, size: int = 10) -> None:
    table.resolve(table.open(request_id, "sample"), Answer(b"x" * size))


async def test_fetched_answers_make_room_first() -> None:
    table = PromiseTable(max_answers=3)
    for request_id in ("a", "b", "c"):
        await answered(table, request_id)
    table.mark_read("b")
    await answered(table, "d")
    assert table.get("a").answer is not None
    with pytest.raises(Refusal, match="not known") as caught:
        table.get("b")
    assert caught.value.status == 410
    await answered(table, "e")
    with pytest.raises(Refusal):
        table.get("a")


async def test_what_was_answered_is_not_computed_again() -> None:
    table = PromiseTable(max_bytes=100)
    await answered(table, "a", 60)
    await answered(table, "b", 60)
    with pytest.raises(Refusal, match="answered before") as caught:
        table.find("a", "sample")
    assert caught.value.status == 410
    assert table.find("b", "sample") is table.get("b")
    assert table.find("c", "sample") is None
    assert table.counts() == {"running": 0, "answered": 1, "forgotten": 1, "answer_bytes": 60}


async def test_one_answer_larger_than_the_bound_is_still_given() -> None:
    table = PromiseTable(max_bytes=100)
    await answered(table, "big", 1000)
    assert table.get("big").answer is not None


def write_weights() -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("write", [lambda: Path("/dev/full").write_text("a record"), write_weights])
async def test_a_full_disk_says_what_to_do(write: Callable[[], object]) -> None:
    table = PromiseTable()
    promise = table.open("a", "save_weights")

    async def save() -> Answer:
        write()
        return Answer(b"")

    assert not await settle(table, promise, save)
    assert promise.answer is not None
    answer = json.loads(promise.answer.body)
    assert answer["category"] == "server"  # which is tried again
    assert "disk of the embedded Tinker server is full" in answer["error"]
    assert "coderl clean --weights" in answer["error"] and "run the same command again" in answer["error"]


async def test_the_first_answer_stays() -> None:
    table = PromiseTable()
    promise = table.open("a", "sample")
    assert await table.wait(promise, 0.0) is None
    for body in (b"first", b"second"):
        table.resolve(promise, Answer(body))
    answer = await table.wait(promise, 0.0)
    assert answer is not None and answer.body == b"first"


@pytest.mark.parametrize(
    "path",
    [
        "tinker://a:train:0/weights/../../x",
        "tinker://a:train:0/weights/..",
        "tinker://../weights/x",
        "tinker://a:train:0/data/x",
        "tinker://a:train:0/weights/",
        "/etc/passwd",
    ],
)
def test_paths_stay_inside_the_store(path: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_path(path)
    assert caught.value.status == 400


def test_names() -> None:
    assert check_name("step-000012.final+1") == "step-000012.final+1"
    assert check_run_id("1f-2b:train:3") == "1f-2b:train:3"
    for name in (None, "", ".hidden", "a/b", "a\n", "x" * 201):
        with pytest.raises(Refusal):
            check_name(name)


async def test_waiting_behind_a_long_request_does_not_count_as_a_gap() -> None:
    queue = SequencedQueue("model", gap_timeout_s=0.2)
    release = asyncio.Event()
    ran: list[int] = []
    given_up: list[str] = []

    def request(seq: int, until: asyncio.Event | None = None) -> None:
        async def work() -> None:
            if until is not None:
                await until.wait()
            ran.append(seq)
            if seq == 3:
                finished.set()

        queue.put(seq, work, given_up.append)

    finished = asyncio.Event()
    request(1, release)
    request(3)
    asyncio.get_running_loop().call_later(0.3, release.set)
    await release.wait()
    request(2)
    await finished.wait()
    assert (ran, given_up) == ([1, 2, 3], [])
    request(5)
    queue.close("over")
    assert given_up == ["over"]


async def test_what_was_fetched_is_kept_for_a_while_and_not_for_ever() -> None:
    table = PromiseTable(max_read_bytes=100, max_forgotten=3)
    for number in range(10):
        await answered(table, f"{number}", 40)
        if number != 2:  # a client that never asks
            table.mark_read(f"{number}")
            table.mark_read(f"{number}")  # it got lost on the way
    assert table.counts() == {"running": 0, "answered": 3, "forgotten": 3, "answer_bytes": 120}
    assert all(table.get(f"{number}").answer is not None for number in (2, 8, 9))
    with pytest.raises(Refusal, match="no longer kept"):
        table.find("7", "sample")
