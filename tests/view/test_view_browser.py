"""`coderl view` in a browser: three clicks from a dip to a failing test, keys, a run that goes on, hostile texts."""

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.view.browser import CHROMIUM, Browser, addresses, until
from tests.view.conftest import Served, further_step
from tests.view.hostile import HOSTILE_TEXTS
from tests.view.test_view_pages import HOSTILE_RUN, dip

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed (Debian: apt-get install chromium)")
LIVE_S = 3.0
"""A step is to be seen this long after its commit, and what three requests take on a machine that others share."""


@pytest.fixture(scope="module")
def opened(served: Served) -> Iterator[Browser]:
    with Browser() as browser:
        browser.open(f"{served.origin}/?key={served.key}")
        yield browser


@pytest.fixture
def browser(opened: Browser) -> Browser:
    opened.requests.clear()
    opened.errors.clear()
    return opened


def test_three_clicks_from_a_dip_to_a_failing_test(browser: Browser, served: Served) -> None:
    step = dip(served.folder / "ordinary")
    browser.open(f"{served.origin}/run/ordinary")
    browser.click(f'.timeline a.hit[href="/run/ordinary/step/{step}"]')
    assert browser.path == f"/run/ordinary/step/{step}"
    browser.click("tr[data-row] a")  # the group with the lowest pass rate comes first
    assert browser.path.startswith("/run/ordinary/problem?id=")
    browser.click(f'[data-row] a[href^="/run/ordinary/step/{step}/"]')
    assert browser.path.startswith(f"/run/ordinary/step/{step}/")
    verdict = browser.run("document.querySelector('h1 .tag').textContent")
    assert verdict not in ("passed", "infra_error")
    shown = browser.run("document.querySelector('#failed') && document.querySelector('.failing').innerText")
    assert verdict == "format_error" or "Input" in shown
    for _ in range(3):  # and back again
        browser.run("history.back()")
        browser.loaded()
    assert browser.path == "/run/ordinary"
    assert addresses(browser, served.origin) == [] and browser.errors == []


def test_the_keyboard_does_all_of_it(browser: Browser, served: Served) -> None:
    browser.open(f"{served.origin}/run/ordinary/step/4")
    browser.press("j", "j", "k")
    first = browser.run("document.querySelector('[data-row] a').getAttribute('href')")
    assert browser.run("document.activeElement.getAttribute('href')") == first
    browser.press("Enter")
    assert browser.path == first
    browser.press("j", "Enter")
    assert browser.path.startswith("/run/ordinary/step/4/")
    browser.press("u")
    assert browser.path.startswith("/run/ordinary/problem?id=")
    browser.press("u")
    assert browser.path == "/run/ordinary/step/4"
    browser.press("n")
    assert browser.path == "/run/ordinary/step/5"
    browser.press("p")
    assert browser.path == "/run/ordinary/step/4"
    browser.press("u")
    assert browser.path == "/run/ordinary"
    browser.press("?")
    assert browser.run("document.getElementById('help').open") is True
    browser.press("Escape")
    until(lambda: browser.run("document.getElementById('help').open") is False)
    browser.press("/")
    assert browser.run("document.activeElement.id") == "search"
    browser.press("n", "o", "w")  # in a field a key is a letter
    assert browser.run("document.getElementById('search').value") == "now"
    browser.press("Enter")
    assert browser.path == "/run/ordinary/search?q=now"


FOCUSED = "document.activeElement.getAttribute('href')"


def test_the_keyboard_moves_in_a_pool_and_in_a_comparison(browser: Browser, served: Served) -> None:
    browser.open(f"{served.origin}/pool/near")
    browser.press("j", "Enter")  # what was dropped comes first
    assert browser.path.startswith("/pool/near/drops?stage=dedup")
    browser.press("j")
    assert browser.run(FOCUSED) == "/pool/near/problem?id=taco-0000"
    browser.press("j")
    assert browser.run(FOCUSED) == "/pool/near/problem?id=taco-0002"
    browser.press("Enter", "u")
    assert browser.path == "/pool/near"
    browser.press("k", "Enter")  # the last row
    assert browser.path.startswith("/pool/near/problem?id=taco-")
    browser.open(f"{served.origin}/compare?run=ordinary&run=live")
    browser.press("j", "j", "k")
    rows = "[...document.querySelectorAll('[data-row] a:first-of-type')].map((link) => link.getAttribute('href'))"
    assert browser.run(FOCUSED) == browser.run(rows)[0] == "/run/ordinary"
    browser.press("Enter")
    assert browser.path == "/run/ordinary"


def test_the_theme_is_the_systems_until_one_is_chosen(browser: Browser, served: Served) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.theme("light")
    browser.open(f"{served.origin}/")
    light = browser.run(colour)
    browser.theme("dark")
    dark = browser.run(colour)
    assert light != dark
    browser.press("t")
    assert browser.run(colour) == light
    browser.open(f"{served.origin}/run/ordinary")
    assert browser.run(colour) == light  # and it stays
    browser.run("localStorage.clear()")
    browser.theme("light")


def test_a_committed_step_is_seen_within_three_seconds(browser: Browser, served: Served) -> None:
    browser.open(f"{served.origin}/run/live")
    assert browser.run("document.querySelector('.timeline a.hit[href$=\"/step/3\"]')") is None
    begun = time.monotonic()
    browser.run("fetch(location.href).then((answer) => answer.text()).then((text) => text.length)")
    request_s = time.monotonic() - begun
    further_step(served.folder / "live", 3)
    committed = time.monotonic()
    until(lambda: browser.run("document.querySelectorAll('a[href=\"/run/live/step/3\"]').length"))
    assert time.monotonic() - committed < LIVE_S + 3 * request_s
    assert browser.errors == []


def test_contrast_and_labels(browser: Browser, served: Served) -> None:
    """Every text has a contrast of 4.5 to what it stands on, in both themes; every control has a name."""
    pages = (
        "/",
        "/run/ordinary",
        "/run/ordinary/step/4",
        "/run/ordinary/step/4/0/0",
        "/run/ordinary/search?q=v",
        "/run/ordinary/problem?id=taco-0001",
        "/run/ordinary/eval/final",
        "/compare?run=ordinary&run=live",
        "/pool/curated",
        "/pool/near/drops?stage=dedup&reason=near_duplicate",
        f"{HOSTILE_RUN}/step/0/0/0",
    )
    for theme in ("light", "dark"):
        browser.theme(theme)
        for page in pages:
            browser.open(served.origin + page)
            assert browser.run(FAINT) == [], (theme, page)
            assert browser.run(NAMELESS) == [], (theme, page)
    browser.theme("light")


FAINT = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const solid = (text) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data; return { c: [d[0], d[1], d[2]], a: d[3] / 255 };
  };
  const light = (c) => {
    const [r, g, b] = c.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(solid(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, over) => under.map((v, i) => v * (1 - over.a) + over.c[i] * over.a),
      [255, 255, 255]);
  };
  const faint = [];
  for (const element of document.querySelectorAll("main *, header *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const text = solid(element.namespaceURI.endsWith("svg") ? style.fill : style.color).c;
    const [a, b] = [light(text), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const name = `${element.tagName}.${element.className.baseVal ?? element.className}`;
    if (contrast < 4.45) faint.push(`${name} ${contrast.toFixed(2)}`);
  }
  return [...new Set(faint)];
})()"""
NAMELESS = """[...document.querySelectorAll("input, select, button, a, svg")].filter((element) =>
  element.type !== "hidden" && !(element.getAttribute("aria-label") || element.textContent.trim() ||
  element.labels?.length || element.title || element.querySelector("img[alt]"))).map((element) => element.outerHTML)"""


def test_hostile_texts_do_nothing(browser: Browser, served: Served) -> None:
    pages = [HOSTILE_RUN, f"{HOSTILE_RUN}/step/0", f"{HOSTILE_RUN}/search?q=alert&within=code", "/pool/hostile", "/"]
    pages += [f"{HOSTILE_RUN}/step/1/0/0"]
    for number in (1, 11, 29, 50, 56):  # the other pages are looked at without a browser
        pages += [f"{HOSTILE_RUN}/step/0/{number}/0"]
        pages += [f"{HOSTILE_RUN}/problem?id={quote(f'{number}-{HOSTILE_TEXTS[number][:200]}', safe='')}"]
    for page in pages:
        browser.open(served.origin + page)
        assert browser.run("document.title").endswith("coderl")
        assert browser.run("document.querySelectorAll('main script, main img, main iframe, main style').length") == 0
        wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, (page, wide)  # no text makes the page wider than the window
    assert browser.dialogs == []
    assert browser.errors == []  # what the policy stops, the console says
    assert addresses(browser, served.origin) == []
