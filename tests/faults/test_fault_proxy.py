"""The proxy does to each request what it says, and the same again for the same seed."""

from collections import Counter

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.faults.fault_proxy import FAULTS, FaultProxy

BODY = b"0123456789" * 10


class Counting:
    """A server that counts what reaches it."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()

    async def handle(self, request: web.Request) -> web.Response:
        self.reached[await request.text()] += 1
        return web.Response(status=201, body=BODY, headers={"X-Kept": request.headers.get("X-Kept", "")})

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app


async def fates(seed: int, rates: dict[str, float], texts: list[str]) -> tuple[list[str], Counter[str]]:
    """What each request came to for the client, and what reached the server."""
    server = Counting()
    async with TestServer(server.app()) as behind:
        proxy = FaultProxy(str(behind.make_url("")), seed, rates=rates, delay_s=0.0, stall_s=0.0)
        async with TestServer(proxy.app()) as front, aiohttp.ClientSession() as session:
            seen = []
            for text in texts:
                try:
                    async with session.post(front.make_url("/a?b=c"), data=text, headers={"X-Kept": "yes"}) as answer:
                        body = await answer.read()
                        seen.append(f"{answer.status} {body == BODY and answer.headers['X-Kept'] == 'yes'}")
                except aiohttp.ClientPayloadError:
                    seen.append("cut")
                except aiohttp.ClientError:
                    seen.append("reset")
    return seen, server.reached


@pytest.mark.parametrize(
    ("fault", "outcome", "reached"),
    [
        ("reset", "reset", 0),
        ("lose", "reset", 1),
        ("cut", "cut", 1),
        ("delay", "201 True", 1),
        ("stall", "201 True", 1),
        ("twice", "201 True", 2),
    ],
)
async def test_each_fault_is_what_it_says(fault: str, outcome: str, reached: int) -> None:
    assert await fates(0, {fault: 1.0}, ["x"]) == ([outcome], Counter({"x": reached} if reached else {}))


async def test_a_failure_is_answered_in_the_servers_place() -> None:
    outcomes, reached = await fates(0, {"fail": 1.0}, [str(n) for n in range(20)])
    assert set(outcomes) == {"500 False", "502 False"} and not reached


async def test_nothing_is_changed_without_faults() -> None:
    assert await fates(0, {}, ["x", "y"]) == (["201 True"] * 2, Counter({"x": 1, "y": 1}))


async def test_faults_follow_the_request_and_not_the_order() -> None:
    texts, rates = [str(n) for n in range(100)], dict.fromkeys(FAULTS, 0.1)
    forwards, _ = await fates(1, rates, texts)
    backwards, _ = await fates(1, rates, texts[::-1])
    other, _ = await fates(2, rates, texts)
    assert forwards == backwards[::-1] != other
    assert 10 < sum(outcome != "201 True" for outcome in forwards) < 70


async def test_a_request_sent_again_is_drawn_for_again() -> None:
    outcomes, _ = await fates(0, {"fail": 0.5}, ["x"] * 50)
    assert 10 < outcomes.count("201 True") < 40


def test_senseless_rates_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        FaultProxy("http://x", rates={"fail": 0.6, "cut": 0.6})
    with pytest.raises(ValueError, match="rates of"):
        FaultProxy("http://x", rates={"melt": 0.1})
