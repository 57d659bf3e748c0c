"use strict";
// Owns which section is shown, which rows are, and what keys do. All that is shown is in the page
// already; only the picture of imports is drawn, once it is opened.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);
  const sections = all("main > section");
  const links = all("nav a");
  const search = one("#search");
  const lanes = one(".lanes");
  const TYPING_MS = 80, CLOSEST = 400, LABEL = 75;

  // -- sections --------------------------------------------------------------------------------
  const current = () => one("main > section.shown");
  const show = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const section = (target && target.closest("main > section")) || sections[0];
    for (const each of sections) each.classList.toggle("shown", each === section);
    for (const link of links) {
      if (link.hash === `#${section.id}`) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "nearest" });
      } else link.removeAttribute("aria-current");
    }
    if (section.contains(lanes)) drawAxis();
    if (target && target !== section) reveal(target); else scrollTo(0, 0);
    filter();
  };
  const reveal = (row) => { // a row that another one leads to, whatever the filters say
    const section = row.closest("main > section");
    if (isLeftOut(row)) {
      for (const chip of all(".chip[aria-pressed=true]", section)) chip.setAttribute("aria-pressed", "false");
      search.value = "";
      count();
    }
    row.hidden = false;
    if (row.matches("details")) row.open = true;
    row.scrollIntoView({ block: "center" });
    (one("summary", row) || row).focus({ preventScroll: true });
  };

  // -- rows: what is searched for, and what the chips say ---------------------------------------
  const texts = new WeakMap();
  const textOf = (row) => {
    if (!texts.has(row)) texts.set(row, row.textContent.toLowerCase());
    return texts.get(row);
  };
  const wanted = () => search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (row, words) => words.every((word) => textOf(row).includes(word));
  const chosenIn = (section) => {
    const chosen = new Map();
    for (const chip of all(".chip[aria-pressed=true]", section)) {
      const { key, value } = chip.dataset;
      chosen.set(key, (chosen.get(key) || new Set()).add(value));
    }
    return [...chosen];
  };
  const isLeft = (row, words, chosen) => matches(row, words)
    && chosen.every(([key, values]) => !(key in row.dataset) || values.has(row.dataset[key]));
  const isLeftOut = (row) => !isLeft(row, wanted(), chosenIn(row.closest("main > section")));
  const filter = () => {
    const section = current();
    const words = wanted();
    const chosen = chosenIn(section);
    const rows = all("[data-row]", section);
    let left = 0;
    for (const row of rows) {
      row.hidden = !isLeft(row, words, chosen);
      if (!row.hidden) left += 1;
    }
    const output = one(".shown-count", section);
    if (output) output.textContent = left === rows.length ? "" : `${left.toLocaleString("en")} of ${rows.length.toLocaleString("en")} shown`;
  };
  const count = () => { // how many rows of each section have what is searched for
    const words = wanted();
    for (const [index, section] of sections.entries()) {
      const badge = one(".number", links[index]);
      if (!badge) continue;
      badge.dataset.whole ??= badge.textContent;
      badge.classList.toggle("hit", words.length > 0);
      badge.textContent = words.length
        ? all("[data-row]", section).filter((row) => matches(row, words)).length.toLocaleString("en")
        : badge.dataset.whole;
    }
  };
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { filter(); count(); }, TYPING_MS);
  });
  document.addEventListener("click", (event) => {
    const chip = event.target.closest(".chip");
    if (!chip) return;
    chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
    filter();
  });
  for (const select of all(".sort")) {
    select.addEventListener("change", () => {
      const list = document.getElementById(select.dataset.list);
      const key = select.value;
      const sign = key === "order" ? 1 : -1;
      list.append(...all("[data-row]", list).sort((a, b) => sign * (a.dataset[key] - b.dataset[key])));
    });
  }

  // -- the timeline ----------------------------------------------------------------------------
  let zoom = 1;
  const zoomTo = (wish) => {
    const before = zoom;
    zoom = Math.min(CLOSEST, Math.max(1, wish));
    const track = one("#axis").offsetWidth; // of the old zoom
    const view = lanes.clientWidth - one(".axis .lane-name").offsetWidth;
    const middle = (lanes.scrollLeft + view / 2) / track;
    lanes.style.setProperty("--zoom", zoom);
    if (zoom !== before) lanes.scrollLeft = middle * one("#axis").offsetWidth - view / 2;
    drawAxis();
  };
  const drawAxis = () => {
    const seconds = Number(lanes.dataset.seconds);
    let step = 1e-6;
    const most = Math.max(2, one("#axis").offsetWidth / LABEL); // labels that have room
    for (let at = 0; seconds / step > most; at += 1) step *= [2, 2.5, 2][at % 3]; // 1, 2, 5, 10
    // Of a long session closely looked at, only what is near is labelled.
    const from = Math.max(0, Math.floor((lanes.scrollLeft / lanes.scrollWidth) * seconds / step) - 20);
    const marks = [];
    for (let tick = from; tick * step <= seconds && marks.length < 80; tick += 1) {
      const mark = document.createElement("i");
      mark.style.left = `${100 * tick * step / seconds}%`;
      mark.textContent = words(tick * step);
      marks.push(mark);
    }
    one("#axis").replaceChildren(...marks);
  };
  const words = (seconds) => {
    if (!seconds) return "0";
    if (seconds < 1) return `${Number((1000 * seconds).toPrecision(4))} ms`;
    return `${Number(seconds.toFixed(3))} s`;
  };
  let scrolling = 0;
  lanes.addEventListener("scroll", () => {
    if (zoom === 1) return;
    cancelAnimationFrame(scrolling);
    scrolling = requestAnimationFrame(drawAxis);
  });
  lanes.addEventListener("focusin", (event) => { // what a row has to show may be far away
    const row = event.target.closest(".lane-row");
    if (row && zoom > 1) one(".life", row).scrollIntoView({ block: "nearest", inline: "center" });
  });
  one("#closer").addEventListener("click", () => zoomTo(zoom * 2));
  one("#further").addEventListener("click", () => zoomTo(zoom / 2));
  one("#all-time").addEventListener("click", () => zoomTo(1));

  // -- the picture of imports ------------------------------------------------------------------
  const box = one("#graph-box");
  if (box) {
    box.addEventListener("toggle", () => {
      if (box.open) drawImports(one("#data").textContent, false);
    }, { once: true });
  }

  // -- theme -----------------------------------------------------------------------------------
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const switchTheme = () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("pytest-cudafork-theme", theme); } catch { /* kept for this time only */ }
  };
  one("#theme").addEventListener("click", switchTheme);

  // -- keys ------------------------------------------------------------------------------------
  const keys = one("#keys");
  one("#help").addEventListener("click", () => keys.showModal());
  const step = (by) => {
    const rows = all("[data-row]", current()).filter((row) => !row.hidden);
    const row = document.activeElement.closest("[data-row]");
    const at = rows.indexOf(row);
    const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by];
    if (!next) return;
    const target = one("summary", next) || next;
    target.focus({ preventScroll: true });
    target.scrollIntoView({ block: "nearest" });
  };
  const ACTS = {
    "/": () => { search.focus(); search.select(); },
    j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
    t: switchTheme, "?": () => keys.showModal(),
    "+": () => zoomTo(zoom * 2), "=": () => zoomTo(zoom * 2), "-": () => zoomTo(zoom / 2), 0: () => zoomTo(1),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || keys.open) return;
    const typed = event.target.closest("input, select, textarea");
    if (event.key === "Escape" && event.target === search) {
      search.value = "";
      search.blur();
      filter();
      count();
      return;
    }
    if (typed) {
      if (event.target === search && event.key === "Enter") step(1);
      return;
    }
    const arrow = event.key.startsWith("Arrow");
    if (arrow && !event.target.closest("[data-row]")) return; // the page scrolls
    const link = links[Number(event.key) - 1];
    if (link) location.hash = link.hash;
    else if (event.key in ACTS) ACTS[event.key]();
    else return;
    event.preventDefault();
  });

  window.addEventListener("hashchange", show);
  window.addEventListener("resize", () => { if (current().contains(lanes)) drawAxis(); });
  show();
})();
