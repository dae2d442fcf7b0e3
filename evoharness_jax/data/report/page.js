"use strict";
// Draws the figures and lets the episodes be read. What a model said reaches the page
// as text nodes only.
(() => {
  const $ = (id) => document.getElementById(id);
  const VERBS = ["track", "commit", "recall", "note"];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function el(tag, options = {}, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      if (key === "class") made.className = value;
      else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  async function unpack() {
    const bytes = Uint8Array.from(atob($("data").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  // Figures.

  function theme() {
    const soft = css("--soft"), line = css("--line"), font = css("--text");
    return {
      background: "transparent", font,
      view: { stroke: "transparent" },
      axis: {
        labelColor: soft, titleColor: soft, gridColor: line, domain: false, tickColor: line,
        labelFontSize: 12, titleFontSize: 12.5, titleFontWeight: 600, labelPadding: 5, tickSize: 4,
      },
      axisY: { ticks: false, tickCount: 5 },
      axisX: { tickCount: 6, domain: true, domainColor: line },
      axisBand: { labelColor: css("--ink"), labelFontSize: 13, ticks: false, domain: false, grid: false },
      axisXQuantitative: { grid: false },
      legend: { labelColor: soft, labelFontSize: 12.5, symbolType: "square", offset: 4 },
      line: { strokeWidth: 2 }, text: { fontSize: 12.5 }, bar: { cornerRadiusEnd: 2 },
    };
  }

  async function draw(figures) {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    for (const place of document.querySelectorAll("[data-figure]")) {
      const spec = JSON.stringify(figures[place.dataset.figure][Number(place.dataset.part)]);
      const colored = JSON.parse(spec.replace(/var\((--[a-z]+)\)/g, (_, name) => css(name)));
      await vegaEmbed(place, colored, {
        actions: false, renderer: "svg", ast: true, config: theme(),
        tooltip: { theme: dark ? "dark" : "light" },
      });
    }
    document.body.dataset.drawn = dark ? "dark" : "light";
  }

  // Where the reader is stands in the address, so it outlives a reload and can be sent.

  const place = new URLSearchParams(location.hash.slice(1));
  function remember(changes) {
    for (const [key, value] of Object.entries(changes)) {
      if (value === "") place.delete(key);
      else place.set(key, value);
    }
    try { history.replaceState(null, "", `#${place}`); } catch { /* not in this frame */ }
  }

  // Episodes.

  let episodes = [], shown = [], current = null, turn = 0, unit = "step";

  const outcome = (e) => (e.error ? "error" : e.won ? "won" : "lost");
  const name = (e) => e.objective || e.task;
  const used = (e, verb) => e.turns.some((t) => t.v === verb);

  function options(select, words, values) {
    select.append(el("option", { value: "" }, words), ...values.map((v) => el("option", { value: v }, v)));
    select.value = values.includes(place.get(select.id)) ? place.get(select.id) : "";
    select.addEventListener("change", filter);
  }

  function filter() {
    const wanted = { outcome: $("outcome").value, type: $("type").value, verb: $("verb").value, words: $("words").value };
    const words = wanted.words.toLowerCase();
    shown = episodes.filter((e) =>
      (!wanted.outcome || outcome(e) === wanted.outcome)
      && (!wanted.type || e.type === wanted.type)
      && (!wanted.verb || used(e, wanted.verb))
      && (!words || `${e.task} ${e.opening}`.toLowerCase().includes(words)));
    remember(wanted);
    $("count").textContent = `${shown.length} of ${episodes.length}`;
    $("list").replaceChildren(...shown.map(row));
    $("episode").hidden = !shown.length;
    if (shown.length) open(shown.includes(current) ? current : shown[0], shown.includes(current) ? turn : 0);
  }

  function row(e) {
    const steps = e.step ? `${unit} ${e.step}` : `${e.turns.length} turns`;
    const button = el("button", { type: "button", title: e.task, onclick: () => open(e, 0) },
      el("span", { class: `dot ${outcome(e)}`, title: outcome(e) }),
      el("span", {}, name(e)), el("small", {}, steps));
    button.append(el("span", { class: "skip" }, `, ${outcome(e)}`));
    return el("li", {}, button);
  }

  function open(e, at) {
    current = e;
    for (const [i, one] of [...$("list").children].entries()) {
      const here = shown[i] === e;
      one.firstChild.setAttribute("aria-current", here);
      one.firstChild.tabIndex = here ? 0 : -1;
      if (here) keepInView(one);
    }
    $("task").textContent = name(e);
    const calls = VERBS.filter((v) => e.calls[v]).map((v) => `${v} ${e.calls[v]}`).join(", ");
    $("about").textContent = [
      e.task, e.type, e.error ? `error: ${e.error}` : e.stop, e.step ? `${unit} ${e.step}` : "",
      `${e.turns.length} turns`, calls || "no calls", e.tokens ? `${e.tokens.toLocaleString("en")} tokens` : "",
      `uid ${e.uid}`, e.bank ? `bank ${e.bank}` : "",
    ].filter(Boolean).join(" · ");
    $("why").hidden = !e.why;
    $("why").textContent = e.why ? (e.start ? e.why : `Without the workspace: ${e.why}.`) : "";
    $("strip").replaceChildren(...[null, ...e.turns].map((t, i) => el("button", {
      type: "button", class: t ? `${t.v} ${t.t && t.t !== "ok" ? "refused" : ""}` : "",
      "aria-label": t ? `Turn ${i}, ${t.v === "env" ? "action" : t.v || "cut"}` : "Opening",
      onclick: () => go(i),
    }, t ? String(i) : "0")));
    go(Math.min(at, e.turns.length));
  }

  function keepInView(row) {
    const list = $("list"), top = row.offsetTop - list.offsetTop;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + row.offsetHeight > list.scrollTop + list.clientHeight) {
      list.scrollTop = top + row.offsetHeight - list.clientHeight;
    }
  }

  function go(to) {
    turn = Math.max(0, Math.min(to, current.turns.length));
    for (const [i, one] of [...$("strip").children].entries()) one.setAttribute("aria-current", i === turn);
    $("previous").disabled = turn === 0;
    $("next").disabled = turn === current.turns.length;
    $("where").textContent = turn ? `turn ${turn} of ${current.turns.length}` : `opening, ${current.turns.length} turns follow`;
    $("talk").replaceChildren(...talk());
    $("state").replaceChildren(...(current.start ? state() : []));
    remember({ uid: current.uid, turn });
  }

  function talk() {
    const t = current.turns[turn - 1];
    if (!t) {
      return [
        el("div", {}, el("h4", {}, "The task"), el("pre", {}, current.opening)),
        current.system ? read("System text", current.system) : null,
      ].filter(Boolean);
    }
    const verb = t.v === "env" ? "acts" : t.v || "nothing";
    const tag = t.t && t.t !== "ok" ? `, ${t.t}` : "";
    const from = t.v === "env" ? "Environment" : "Workspace";
    return [
      t.p ? read(`What it read${t.k ? `, ${t.k} tokens with the answer` : ""}`, t.p) : null,
      el("div", { class: `say ${t.v}` }, el("h4", {}, el("b", {}, verb), tag),
        el("pre", {}, t.r || "(the episode was cut off here)")),
      t.o ? el("div", {}, el("h4", {}, from), el("pre", {}, t.o)) : null,
    ].filter(Boolean);
  }

  function read(words, text) {
    const details = el("details", { class: "read" }, el("summary", {}, words), el("pre", {}, text));
    details.open = place.get("read") === "1";
    details.addEventListener("toggle", () => remember({ read: details.open ? "1" : "" }));
    return details;
  }

  // B, P and E after the current turn, and what that turn changed.
  function state() {
    const belief = new Map();
    let plan = [], hints = [], notes = [], fresh = new Set(), old = {};
    for (const one of [current.start, ...current.turns].slice(0, turn + 1)) {
      fresh = new Set();
      old = { plan, hints, notes };
      for (const [name, words, seen] of one.B || []) {
        if (words !== null) fresh.add(name);
        belief.set(name, { words: words === null ? belief.get(name).words : words, seen });
      }
      plan = one.P || plan;
      hints = one.H || hints;
      notes = one.N || notes;
    }
    const rows = [...belief].sort(([a, x], [b, y]) =>
      fresh.has(b) - fresh.has(a) || (a !== 0) - (b !== 0) || y.seen - x.seen || a - b);
    // Places that nobody has looked into are told in one line, unless they are news.
    const hidden = rows.filter(([name, { words }]) => words === "unexplored" && !(turn && fresh.has(name)));
    const known = rows.filter((row) => !hidden.includes(row))
      .map(([name, { words }]) => item(fresh.has(name), el("b", {}, current.names[name]), ` ${words}`));
    if (hidden.length) {
      known.push(item(false, el("i", {}, `unexplored (${hidden.length}): `), hidden.map(([name]) => current.names[name]).sort(byName).join(", ")));
    }
    const has = (list, one) => list.some((other) => String(other) === String(one));
    const steps = plan.map(([status, words]) => item(!has(old.plan, [status, words]), el("i", {}, `${status} `), words));
    const lessons = [
      ...hints.map((words) => item(!has(old.hints, words), el("i", {}, "recalled "), words)),
      ...notes.map((words) => item(!has(old.notes, words), el("i", {}, "noted "), words)),
    ];
    return [
      panel("B", "Belief", `${belief.size} known`, known),
      panel("P", "Progress", `${plan.length} subgoal${plan.length === 1 ? "" : "s"}`, steps),
      panel("E", "Experience", `${hints.length} recalled, ${notes.length} noted`, lessons),
    ];
  }

  const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });
  const item = (isNew, ...words) => el("li", isNew && turn ? { class: "new" } : {}, ...words);

  function panel(letter, name, count, items) {
    const list = el("ul", { tabindex: items.length > 12 ? 0 : -1 }, ...(items.length ? items : [el("li", {}, el("i", {}, "nothing yet"))]));
    return el("div", { "data-part": letter }, el("h4", {}, el("b", {}, name), count), list);
  }

  function keys(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !current || $("episode").hidden) return;
    if (event.target.closest("input, select, .scroll")) return;
    const inList = event.target.closest("#list");
    const moves = { ArrowLeft: turn - 1, ArrowRight: turn + 1, Home: 0, End: current.turns.length };
    const along = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (inList && along) {
      const to = shown[shown.indexOf(current) + along];
      if (to) {
        open(to, 0);
        $("list").children[shown.indexOf(to)].firstChild.focus();
      }
    } else if (event.key in moves && (event.key.startsWith("Arrow") || event.target.closest("#reader"))) {
      go(moves[event.key]);
    } else return;
    event.preventDefault();
  }

  function live() {
    const seconds = Number(document.body.dataset.reload);
    if (!seconds) return;
    const [words, button] = $("live").children;
    let paused = false;
    $("live").hidden = false;
    const say = () => {
      words.textContent = paused ? "Paused." : `Loads itself again every ${seconds} s.`;
      button.textContent = paused ? "Go on" : "Pause";
    };
    button.addEventListener("click", () => { paused = !paused; say(); });
    say();
    setInterval(() => {
      if (paused) return;
      try { sessionStorage.setItem("top", String(scrollY)); } catch { /* no storage here */ }
      location.reload();
    }, 1000 * seconds);
    history.scrollRestoration = "manual";
  }

  async function start() {
    live();
    const data = await unpack();
    episodes = data.episodes;
    unit = data.unit;
    $("note").textContent = data.note;
    if (episodes.length) {
      options($("outcome"), "all", ["won", "lost", "error"].filter((o) => episodes.some((e) => outcome(e) === o)));
      options($("type"), "all", [...new Set(episodes.map((e) => e.type))].sort());
      options($("verb"), "any", VERBS.filter((v) => episodes.some((e) => used(e, v))));
      $("words").value = place.get("words") || "";
      $("words").addEventListener("input", filter);
      document.querySelector(".filters").addEventListener("submit", (event) => event.preventDefault());
      $("previous").addEventListener("click", () => go(turn - 1));
      $("next").addEventListener("click", () => go(turn + 1));
      document.addEventListener("keydown", keys);
      current = episodes.find((e) => String(e.uid) === place.get("uid")) || null;
      turn = current ? Number(place.get("turn")) || 0 : 0;
      $("reader").hidden = false;
      filter();
    }
    await draw(data.figures);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(data.figures));
    try {
      if (document.body.dataset.reload !== "0") scrollTo(0, Number(sessionStorage.getItem("top")) || 0);
    } catch { /* no storage here */ }
    document.body.dataset.ready = "true";
  }

  start().catch((error) => { $("note").textContent = `This page could not be read: ${error}`; });
})();
