// The browser of episodes: filters, the list, and one episode as a conversation or token by token.

const PAGE = 100;

function seconds(value) {
  return value >= 100 ? `${Math.round(value)} s` : value >= 1 ? `${value.toFixed(2)} s` : `${Math.round(value * 1000)} ms`;
}

function callsOf(episode) {
  return episode.trajectories.flatMap((trajectory) => trajectory.turns).flatMap((turn) => turn.calls);
}

function sampledOf(episode) {
  return episode.trajectories.flatMap((trajectory) => trajectory.spans).reduce((sum, [start, end]) => sum + end - start, 0);
}

function tokensOf(episode) {
  return episode.trajectories.reduce((sum, trajectory) => sum + trajectory.ids.length, 0);
}

function verdict(episode) {
  if (episode.failure) return ["failed", "!", "failed"];
  if (episode.correct === null) return ["", "–", "not judged"];
  return episode.correct >= 1 ? ["yes", "✓", "correct"] : ["no", "✗", "wrong"];
}

function searchText(episode) {
  const parts = [episode.id, episode.answer, episode.truth];
  for (const { prompt } of episode.trajectories) parts.push(...prompt.map((message) => message[1]));
  for (const turn of episode.trajectories.flatMap((trajectory) => trajectory.turns)) {
    parts.push(...turn.segments.map((segment) => segment[1]), ...turn.replies.map((message) => message[1]));
    for (const call of turn.calls) parts.push(call.name, call.arguments, call.result);
  }
  if (episode.failure) parts.push(...episode.failure);
  return parts.filter(Boolean).join("\n").toLowerCase();
}

const TABS = { conversation: conversation, tokens: tokenView, rewards: rewardView };

const ORDERS = {
  "newest first": (a, b) => (b.step ?? Infinity) - (a.step ?? Infinity),
  "oldest first": (a, b) => (a.step ?? Infinity) - (b.step ?? Infinity),
  "highest reward": (a, b) => Number(b.reward) - Number(a.reward),
  "lowest reward": (a, b) => Number(a.reward) - Number(b.reward),
  "most calls": (a, b) => callsOf(b).length - callsOf(a).length,
  "longest": (a, b) => tokensOf(b) - tokensOf(a),
};

function episodeBrowser(episodes, tokens) {
  const list = document.getElementById("list"), detail = document.getElementById("detail"), more = document.getElementById("more");
  // The page's address keeps filters and tab, so that a link opens the same view.
  const link = new URLSearchParams(location.hash.slice(1));
  const state = { shown: [], limit: PAGE, current: null, tab: link.get("tab") in TABS ? link.get("tab") : "conversation", trajectory: 0, shade: false };
  const texts = new Map();
  const filters = makeFilters(episodes, link, () => { state.limit = PAGE; update(); keepLink(); });

  function keepLink() {
    const kept = Object.entries({ ...filters.read(), tab: state.tab }).filter(([, value]) => value);
    history.replaceState(null, "", "#" + new URLSearchParams(kept));
  }

  function update() {
    const wanted = filters.read();
    state.shown = episodes.filter((episode) =>
      (!wanted.step || String(episode.step) === wanted.step) && (!wanted.kind || episode.kind === wanted.kind) &&
      (!wanted.environment || episode.environment === wanted.environment) &&
      (!wanted.verdict || verdict(episode)[2] === wanted.verdict) && (!wanted.stop || episode.stop === wanted.stop) &&
      (!wanted.search || text(episode).includes(wanted.search)));
    state.shown.sort(ORDERS[wanted.order]);
    filters.count(state.shown.length);
    renderList();
    if (!state.shown.includes(state.current)) open(state.shown[0] || null);
  }

  function text(episode) {
    if (!texts.has(episode)) texts.set(episode, searchText(episode));
    return texts.get(episode);
  }

  function renderList() {
    list.replaceChildren(...state.shown.slice(0, state.limit).map((episode) => listItem(episode, episode === state.current, () => open(episode))));
    more.hidden = state.shown.length <= state.limit;
  }

  function open(episode) {
    state.current = episode;
    state.trajectory = 0;
    renderList();
    show();
    detail.scrollTop = 0;
  }

  function show() {
    detail.replaceChildren(...(state.current ? renderEpisode(state.current, tokens, state, () => { show(); keepLink(); }) : [el("p", { class: "empty" }, "No episode fits these filters.")]));
  }

  more.addEventListener("click", () => { state.limit += PAGE; renderList(); });
  document.addEventListener("keydown", (event) => {
    const move = { j: 1, k: -1 }[event.key];
    if (!move || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = state.shown[state.shown.indexOf(state.current) + move];
    if (next) open(next);
  });
  update();
}

function makeFilters(episodes, link, changed) {
  const values = (read) => [...new Set(episodes.map(read).filter((value) => value !== null && value !== undefined))];
  const choice = (all, options) => el("select", { "aria-label": all, onchange: changed }, el("option", { value: "" }, all),
    options.map((value) => el("option", { value }, String(value))));
  const parts = {
    step: choice("all steps", values((episode) => episode.step).sort((a, b) => a - b)),
    kind: choice("train and eval", values((episode) => episode.kind).sort()),
    environment: choice("all environments", values((episode) => episode.environment).sort()),
    verdict: choice("right and wrong", values((episode) => verdict(episode)[2]).sort()),
    stop: choice("all stop reasons", values((episode) => episode.stop).sort()),
    order: el("select", { "aria-label": "order", onchange: changed }, Object.keys(ORDERS).map((name) => el("option", { value: name }, name))),
    search: el("input", { type: "search", placeholder: "Search prompts, answers, calls …", oninput: changed, "aria-label": "search" }),
  };
  parts.environment.hidden = parts.environment.options.length < 3;
  for (const [name, part] of Object.entries(parts)) {
    const value = link.get(name);
    if (value && (name === "search" || [...part.options].some((option) => option.value === value))) part.value = value;
  }
  const count = el("output");
  document.getElementById("filters").append(...Object.values(parts), count);
  return {
    read: () => Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, name === "search" ? part.value.trim().toLowerCase() : part.value])),
    count: (number) => { count.textContent = `${number} shown`; },
  };
}

function listItem(episode, current, opened) {
  const [style, mark, meaning] = verdict(episode);
  const prompt = episode.trajectories.length ? episode.trajectories[0].prompt : [];
  const question = [...prompt].reverse().find((message) => message[0] === "user") || prompt[0];
  const calls = callsOf(episode).length;
  const where = episode.step === null ? "unfinished step" : `step ${episode.step}`;
  return el("li", {}, el("button", { type: "button", "aria-current": String(current), onclick: opened },
    el("span", { class: "what" }, el("span", { class: `mark ${style}`, title: meaning }, mark), ` ${question ? visible(question[1].slice(0, 160)) : episode.id}`),
    el("span", {}, formatNumber(episode.reward)),
    el("span", { class: "how" }, `${where} · ${episode.kind || ""} · ${calls} ${calls === 1 ? "call" : "calls"} · ${sampledOf(episode)} tokens · ${episode.stop}`)));
}

function chip(text, style, title) {
  return el("span", { class: `chip ${style || ""}`, title }, text);
}

function renderEpisode(episode, tokens, state, show) {
  const [style, , meaning] = verdict(episode);
  const versions = [...new Set(episode.trajectories.flatMap((trajectory) => trajectory.versions))].sort((a, b) => a - b);
  const tone = { yes: "good", no: "bad", failed: "bad" }[style];
  const facts = [chip(meaning, tone), chip(`reward ${formatNumber(episode.reward)}`), chip(`stopped by ${episode.stop}`),
    chip(`${sampledOf(episode)} of ${tokensOf(episode)} tokens sampled`), chip(seconds(episode.seconds)), chip(`environment ${episode.environment}`),
    versions.length ? chip(`weights ${versions.join(", ")}`, "", "versions that sampled it") : null];
  const tab = (name, label) => el("button", { type: "button", role: "tab", "aria-selected": String(state.tab === name), onclick: () => { state.tab = name; show(); } }, label);
  const trajectories = episode.trajectories.map((trajectory, number) => el("button",
    { type: "button", role: "tab", "aria-selected": String(state.trajectory === number), onclick: () => { state.trajectory = number; show(); } },
    `${trajectory.role} ${number + 1}${trajectory.trained ? "" : " (not trained)"}`));
  const shade = el("label", {}, el("input", { type: "checkbox", checked: state.shade, onchange: (event) => { state.shade = event.target.checked; show(); } }), " shade unlikely tokens");
  return [
    el("div", { class: "head" }, el("h3", {}, episode.id), el("span", { class: "note" }, `${episode.step === null ? "unfinished step" : `step ${episode.step}`} · ${episode.kind || ""} · keys j and k`)),
    el("div", { class: "chips" }, facts),
    episode.failure ? failureBox(episode.failure) : null,
    el("div", { class: "tabs", role: "tablist" }, tab("conversation", "Conversation"), tab("tokens", "Tokens"), tab("rewards", "Rewards"), state.tab === "tokens" ? shade : null),
    trajectories.length > 1 && state.tab !== "rewards" ? el("div", { class: "tabs", role: "tablist" }, trajectories) : null,
    TABS[state.tab](episode, tokens, state.shade, episode.trajectories[state.trajectory]),
  ].filter(Boolean);
}

function failureBox([fault, component, message, traceback]) {
  return el("div", { class: "banner bad" }, el("p", {}, `Failed in the ${fault} (${component})`), el("pre", {}, message),
    traceback ? el("details", {}, el("summary", {}, "Traceback"), el("pre", {}, traceback)) : null);
}

// Control characters, and those that turn the direction of writing, as marks of themselves.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function block(origin, text) {
  return el("div", { class: `text ${origin}` }, visible(text));
}

function conversation(episode, tokens, shade, trajectory) {
  const parts = [];
  for (const [role, text] of trajectory.prompt) parts.push(el("p", { class: "who" }, el("b", {}, role)), block("prompt", text));
  for (const turn of trajectory.turns) {
    const count = turn.segments.filter((segment) => segment[0] === "model").reduce((sum, segment) => sum + segment[2], 0);
    const rewards = episode.rewards.filter((entry) => entry[0] === turn.index);
    parts.push(el("p", { class: "who" }, el("b", {}, `turn ${turn.index + 1}`), `${count} tokens · ${seconds(turn.generate)}${turn.calls.length ? ` · tools ${seconds(turn.tools)}` : ""} · ended by ${turn.finish}`,
      rewards.map((entry) => chip(`${entry[1]} ${signed(entry[2])}`, entry[2] >= 0 ? "good" : "bad", `weight ${entry[3]}`))));
    for (const [origin, text] of turn.segments) parts.push(block(origin, text));
    parts.push(...turn.calls.map(callBox));
    for (const [role, text] of turn.replies) parts.push(el("p", { class: "who" }, el("b", {}, role)), block("tool", text));
  }
  const end = [episode.answer === null ? null : chip(`answer: ${episode.answer}`, "", episode.answer), episode.truth === null ? null : chip(`expected: ${episode.truth}`, "", episode.truth)];
  parts.push(el("div", { class: "chips" }, end));
  return el("div", {}, parts);
}

function callBox(call) {
  const flags = [call.error ? chip(call.error, "bad") : chip("ok", "good"), call.unread ? chip(`not readable: ${call.unread}`, "bad") : null,
    call.truncated ? chip("cut", "warn", "The result was cut to its limit.") : null, call.done ? chip("ended the episode") : null,
    call.media ? chip(`${call.media} media`) : null, call.reward === null ? null : chip(`reward ${signed(call.reward)}`)];
  return el("div", { class: `call ${call.error ? "failed" : ""}` },
    el("p", { class: "who" }, el("b", {}, call.name || "(unnamed)"), `${seconds(call.seconds)} · started at ${seconds(call.started)}`, flags),
    el("pre", {}, visible(call.arguments)), block("tool", call.result));
}

function signed(value) {
  return `${Number(value) >= 0 ? "+" : ""}${formatNumber(value)}`;
}

function tokenView(episode, tokens, shade, trajectory) {
  const box = el("div", { class: "tokens" });
  const sampled = new Map();
  let place = 0;
  for (const [start, end] of trajectory.spans) for (let index = start; index < end; index++) sampled.set(index, trajectory.logprobs[place++]);
  trajectory.ids.forEach((id, index) => {
    const origin = sampled.has(index) ? "model" : index < trajectory.promptLength ? "prompt" : "tool";
    const known = Object.hasOwn(tokens, id);
    const piece = known ? tokens[id] : `⟨${id}⟩`;
    const logprob = sampled.get(index);
    const chance = logprob === undefined ? "" : ` · log-probability ${logprob} · probability ${formatNumber(Math.exp(Number(logprob)), "share")}`;
    const span = el("span", { class: `${origin}${known ? "" : " unknown"}`, title: `token ${index} · id ${id}${chance}` }, visible(piece).replaceAll("\n", "↵\n") || "∅");
    if (shade && logprob !== undefined) span.style.background = `color-mix(in srgb, var(--bad) ${Math.round(75 * (1 - Math.exp(Number(logprob))))}%, var(--model))`;
    box.append(span);
  });
  const names = [["prompt", "prompt"], ["model", "model (trained on)"], ["tool", "tools and template"]];
  return el("div", {}, el("div", { class: "swatches" }, names.map(([style, name]) => el("span", { class: style }, name))), box);
}

function rewardView(episode) {
  if (!episode.rewards.length) return el("p", { class: "empty" }, "No rewards.");
  const rows = episode.rewards.map(([turn, source, value, weight, role]) => el("tr", {}, el("th", {}, source),
    el("td", {}, `${turn === null ? "whole" : `turn ${turn + 1}`}${role === null ? "" : ` of ${role}`}`), el("td", {}, formatNumber(value)), el("td", {}, formatNumber(weight)), el("td", {}, formatNumber(value * weight))));
  const head = ["source", "credited to", "value", "weight", "product"].map((name) => el("th", {}, name));
  return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows,
    el("tr", {}, el("th", {}, "sum"), el("td"), el("td"), el("td"), el("td", {}, formatNumber(episode.reward)))));
}
