// The list of episodes: its filters, its order, and the address of what is open.

const PAGE = 100;
const TABS = ["conversation", "group", "tokens", "rewards", "json"];
const newest = (a, b) => (b.step ?? Infinity) - (a.step ?? Infinity) || a.line - b.line;
const ORDERS = {
  "failures first": (a, b) => verdictOf(a).rank - verdictOf(b).rank || newest(a, b),
  "newest first": newest,
  "oldest first": (a, b) => -newest(a, b),
  "highest reward": (a, b) => Number(b.reward) - Number(a.reward) || newest(a, b),
  "lowest reward": (a, b) => Number(a.reward) - Number(b.reward) || newest(a, b),
  "most calls": (a, b) => b.calls - a.calls || newest(a, b),
  "longest": (a, b) => b.tokens - a.tokens || newest(a, b),
};

// What each choice filters by, and the values that a row has for it.
const CHOICES = {
  step: ["all steps", (row) => (row.step === null ? [] : [row.step])],
  kind: ["train and eval", (row) => (row.kind ? [row.kind] : [])],
  environment: ["all environments", (row) => [row.environment]],
  tool: ["all tools", (row) => row.tools],
  error: ["all tool errors", (row) => row.errors],
  stop: ["all stop reasons", (row) => [row.stop]],
};

function makeFilters(partial, changed) {
  const verdicts = el("div", { class: "verdicts", role: "group", "aria-label": "outcome" });
  let verdict = "";
  const parts = {};
  for (const [name, [all]] of Object.entries(CHOICES)) parts[name] = el("select", { "aria-label": all, onchange: changed });
  const number = (label) => el("input", { type: "number", step: "any", placeholder: label, "aria-label": label, oninput: changed });
  Object.assign(parts, { min: number("reward ≥"), max: number("reward ≤"),
    order: el("select", { "aria-label": "order", onchange: changed }, Object.keys(ORDERS).map((name) => el("option", { value: name }, name))),
    search: el("input", { type: "search", placeholder: "Search rows and conversations (key /)", oninput: changed, "aria-label": "search" }) });
  const count = el("output");
  document.getElementById("filters").append(verdicts, ...Object.values(parts));

  // The choices that the rows give; one that says nothing is hidden.
  function offer(rows) {
    for (const [name, [all, read]] of Object.entries(CHOICES)) {
      const values = [...new Set(rows.flatMap(read))].sort((a, b) => (typeof a === "number" ? a - b : a < b ? -1 : 1));
      const kept = parts[name].value || parts[name].dataset.wanted || "";
      parts[name].replaceChildren(el("option", { value: "" }, all), ...values.map((value) => el("option", { value }, String(value))));
      parts[name].value = values.map(String).includes(kept) ? kept : "";
      parts[name].hidden = values.length < (name === "tool" || name === "error" ? 1 : 2) && !parts[name].value;
    }
    const counts = new Map(VERDICTS.map((name) => [name, 0]));
    for (const row of rows) { verdictOf(row); for (const mark of row.marks) counts.set(mark, counts.get(mark) + 1); }
    const button = (name, label, total, then) => el("button", { type: "button", class: name.replace(" ", "-"), "aria-pressed": String(verdict === name),
      onclick: () => { verdict = verdict === name && !then ? "" : name; changed(); if (then) then(); } }, label, el("b", {}, total.toLocaleString("en")));
    const made = (then) => [button("", "all", rows.length, then), ...[...counts].filter(([name, total]) => total || verdict === name).map(([name, total]) => button(name, name, total, then))];
    verdicts.replaceChildren(...made(), count);
    const lead = () => document.getElementById("browser").scrollIntoView();
    document.getElementById("outcomes").replaceChildren(el("span", {}, partial ? "Episodes on this page" : "Episodes"), ...made(lead));
  }

  return {
    offer,
    focus: () => { parts.search.focus(); parts.search.scrollIntoView({ block: "nearest" }); },
    set: (link) => {
      verdict = VERDICTS.includes(link.get("verdict")) ? link.get("verdict") : "";
      for (const [name, part] of Object.entries(parts)) {
        const value = link.get(name) || (name === "order" ? "failures first" : "");
        if (name in CHOICES) part.dataset.wanted = value;
        if (name !== "order" || value in ORDERS) part.value = value;
      }
    },
    read: () => ({ ...Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, part.value.trim()])), verdict }),
    count: (shown, all) => { count.textContent = shown === all ? `${shown.toLocaleString("en")} shown` : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} shown`; },
    press: () => { for (const button of document.querySelectorAll(".verdicts button")) button.setAttribute("aria-pressed", String(button.className === verdict.replace(" ", "-"))); },
  };
}

function matches(row, wanted, source) {
  for (const [name, [, read]] of Object.entries(CHOICES)) if (wanted[name] && !read(row).some((value) => String(value) === wanted[name])) return false;
  if (wanted.verdict) { verdictOf(row); if (!row.marks.has(wanted.verdict)) return false; }
  if (wanted.min !== "" && !(Number(row.reward) >= Number(wanted.min))) return false;
  if (wanted.max !== "" && !(Number(row.reward) <= Number(wanted.max))) return false;
  return !wanted.search || searchText(row).includes(wanted.search.toLowerCase()) || source.says(row);
}

function listItem(row, current, opened) {
  const { errors, rest } = endOf(row);
  return el("li", {}, el("button", { type: "button", "aria-current": String(current), onclick: opened },
    el("span", { class: "what" }, markOf(row), ` ${visible(row.question || row.id)}`),
    el("span", { class: "reward", title: "reward" }, formatNumber(row.reward)),
    el("span", { class: "how" }, howOf(row)),
    errors.length + rest.length ? el("span", { class: "how" }, errors.length ? el("b", {}, `${visible(errors.join(" · "))} `) : "", visible(rest.join(" · "))) : null));
}

function episodeBrowser(source) {
  const list = document.getElementById("list"), detail = document.getElementById("detail"), more = document.getElementById("more");
  const state = { shown: [], limit: PAGE, current: null, wanted: null, tab: "conversation", trajectory: 0, shade: false };
  const filters = makeFilters(source.partial, () => { state.limit = PAGE; update(); keepLink(); });
  const groups = new Map();

  // The page's address keeps the episode, the filters and the tab, so that a link opens the same view.
  function keepLink() {
    const read = filters.read();
    if (read.order === "failures first") delete read.order;
    const kept = Object.entries({ episode: state.current && state.current.id, tab: state.tab === "conversation" ? "" : state.tab, ...read });
    history.replaceState(null, "", "#" + new URLSearchParams(kept.filter(([, value]) => value)));
  }

  function follow() {
    const link = new URLSearchParams(location.hash.slice(1));
    state.tab = TABS.includes(link.get("tab")) ? link.get("tab") : "conversation";
    state.wanted = link.get("episode");
    filters.set(link);
    refresh();
    if (state.wanted === null && state.current) show();
  }

  // Called with new rows too, while a run goes on.
  function refresh() {
    groups.clear();
    for (const row of source.rows) {
      const key = `${row.step} ${row.kind} ${row.group}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(row);
    }
    filters.offer(source.rows);
    const found = state.wanted !== null && source.rows.find((row) => row.id === state.wanted);
    if (found) { state.wanted = null; update(); open(found, true); document.getElementById("browser").scrollIntoView(); } else update();
  }

  function update() {
    const wanted = filters.read();
    source.search(wanted.search, update);
    state.shown = source.rows.filter((row) => matches(row, wanted, source)).sort(ORDERS[wanted.order]);
    filters.count(state.shown.length, source.rows.length);
    filters.press();
    renderList();
    if (state.current && state.current.file !== undefined && !source.rows.includes(state.current)) {
      const { id, step, kind } = state.current;
      state.current = source.rows.find((row) => row.id === id && row.step === step && row.kind === kind) || null;
      if (state.current && state.failed) show();  // Its step has ended, and its file has another name.
    }
    if (!state.current || !state.shown.includes(state.current)) { if (state.wanted === null) open(state.shown[0] || null); }
  }

  function renderList() {
    list.replaceChildren(...state.shown.slice(0, state.limit).map((row) => listItem(row, row === state.current, () => { open(row, true); if (innerWidth <= 820) detail.scrollIntoView(); })));
    more.hidden = state.shown.length <= state.limit;
  }

  function open(row, chosen) {
    state.current = row;
    state.trajectory = 0;
    renderList();
    show();
    detail.scrollTop = 0;
    if (chosen) keepLink();
  }

  async function show() {
    const row = state.current;
    if (!row) {
      detail.replaceChildren(el("p", { class: "empty" }, "No episode fits these filters."));
      return;
    }
    const siblings = [...(groups.get(`${row.step} ${row.kind} ${row.group}`) || [row])].sort((a, b) => a.index - b.index);
    const actions = { show: () => { show(); keepLink(); }, open: (other) => open(other, true), load: source.load, record: source.record, step };
    try {
      const { episode, tokens } = await source.load(row);
      state.failed = false;
      if (row === state.current) detail.replaceChildren(...renderEpisode(row, episode, tokens, siblings, state, actions));
    } catch (error) {
      state.failed = true;
      if (row === state.current) detail.replaceChildren(el("p", { class: "empty" }, String(error.message || error)));
    }
  }

  function step(move) {
    const next = state.shown[state.shown.indexOf(state.current) + move];
    if (!next) return;
    open(next, true);
    const item = list.querySelector('[aria-current="true"]');
    if (item) item.scrollIntoView({ block: "nearest" });
  }

  more.addEventListener("click", () => { state.limit += PAGE; renderList(); });
  document.addEventListener("keydown", (event) => {
    if (/INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const move = { j: 1, k: -1 }[event.key];
    if (move) step(move);
    if (event.key === "/") { event.preventDefault(); filters.focus(); }
  });
  addEventListener("hashchange", follow);
  follow();
  return { refresh };
}
