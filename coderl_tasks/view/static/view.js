"use strict";
// The viewer's only script: theme, keys, what a curve's column says, copying, and looking whether the run has gone on.
// It makes no markup of its own: what it puts into a page came from the server as a page.
(() => {
  const root = document.documentElement;
  const EVERY_MS = 1000;

  const chosen = localStorage.getItem("coderl-theme");
  if (chosen) root.dataset.theme = chosen;

  function isDark() {
    return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  }

  function switchTheme() {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("coderl-theme", root.dataset.theme);
  }

  function rowLinks() {
    return [...document.querySelectorAll("[data-row]")].map((row) => row.querySelector("a[href]")).filter(Boolean);
  }

  // The keyboard moves the focus itself, so that Enter, screen readers and the eye agree on where one is.
  function move(by) {
    const links = rowLinks();
    if (!links.length) return;
    const row = document.activeElement && document.activeElement.closest("[data-row]");
    const at = row ? links.findIndex((link) => row.contains(link)) : -1;
    const next = links[Math.min(links.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by))];
    next.focus();
    next.closest("[data-row]").scrollIntoView({ block: "nearest" });
  }

  function follow(rel) {
    const link = document.querySelector(`a[rel~="${rel}"]`);
    if (link) link.click();
  }

  const keys = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow("next"),
    p: () => follow("prev"),
    u: () => follow("up"),
    t: switchTheme,
    "/": () => document.getElementById("search") && document.getElementById("search").focus(),
    "?": () => document.getElementById("help").showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inField = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && inField) inField.blur();
    if (inField || document.querySelector("dialog[open]") || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    if (button.id === "keys") document.getElementById("help").showModal();
    if (button.dataset.copy) {
      navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }
  });

  document.addEventListener("mouseover", (event) => {
    const column = event.target.closest("[data-say]");
    const chart = event.target.closest(".chart");
    const readout = chart && chart.querySelector("output");
    if (readout) readout.textContent = column ? column.dataset.say : readout.dataset.usual;
  });

  // A long list goes where the reader was after the page was made anew; what was opened stays open.
  function replaceMain(page) {
    const main = document.querySelector("main"), fresh = page.querySelector("main");
    const open = [...main.querySelectorAll("details")].map((each) => each.open);
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    main.replaceChildren(...fresh.childNodes);
    [...main.querySelectorAll("details")].forEach((each, place) => { if (open[place]) each.open = true; });
    if (focused) {
      const again = [...main.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === focused);
      if (again) again.focus({ preventScroll: true });
    }
    document.body.dataset.state = page.body.dataset.state;
    document.title = page.title;
  }

  // The phase of the step under way: of a run's page this line alone changes between commits.
  function showWork(link, step, words) {
    const line = document.getElementById("at-work");
    if (!line) return;
    line.hidden = !words;
    line.querySelector("a").setAttribute("href", link);
    [step, words].forEach((text, place) => { line.querySelectorAll("span")[place].textContent = text; });
  }

  async function look() {
    const { watched, state } = document.body.dataset;
    if (!watched || document.hidden) return;
    const answer = await fetch(watched);
    if (!answer.ok) return;
    const found = await answer.json();
    if (found.at_work) showWork(...found.at_work);
    if (found.state === state) return;
    if (document.activeElement && document.activeElement.matches("main input, main select")) return; // being filled in
    const page = await fetch(location.href);
    if (page.ok) replaceMain(new DOMParser().parseFromString(await page.text(), "text/html"));
  }

  async function lookOn() {
    const status = document.getElementById("live");
    try {
      await look();
      if (status) status.classList.remove("lost");
    } catch {
      if (status) status.classList.add("lost"); // the server has ended, or starts anew
    }
    setTimeout(lookOn, EVERY_MS);
  }

  document.addEventListener("DOMContentLoaded", () => { if (document.body.dataset.watched) setTimeout(lookOn, EVERY_MS); });
})();
