// One episode: as a conversation, beside its siblings, token by token, by its rewards.

const VIEWS = { conversation, group: groupView, tokens: tokenView, rewards: rewardView, json: jsonView };

function renderEpisode(row, episode, tokens, siblings, state, actions) {
  const versions = [...new Set(episode.trajectories.flatMap((trajectory) => trajectory.versions))].sort((a, b) => a - b);
  const { name } = verdictOf(row);
  const facts = [chip(name, { correct: "good", wrong: "bad", failed: "bad" }[name]), chip(`reward ${formatNumber(row.reward)}`),
    row.advantage === null ? null : chip(`advantage ${signed(row.advantage)}`, "", ADVANTAGE), chip(`stopped by ${row.stop}`),
    chip(`${row.sampled} of ${row.tokens} tokens sampled`), chip(seconds(row.seconds)), chip(`environment ${row.environment}`),
    versions.length ? chip(`weights ${versions.join(", ")}`, "", "versions that sampled it") : null];
  const tab = (key, label) => el("button", { type: "button", role: "tab", "aria-selected": String(state.tab === key), onclick: () => { state.tab = key; actions.show(); } }, label);
  const trajectories = episode.trajectories.map((trajectory, number) => el("button",
    { type: "button", role: "tab", "aria-selected": String(state.trajectory === number), onclick: () => { state.trajectory = number; actions.show(); } },
    `${trajectory.role} ${number + 1}${trajectory.trained ? "" : " (not trained)"}`));
  const shade = el("label", {}, el("input", { type: "checkbox", checked: state.shade, onchange: (event) => { state.shade = event.target.checked; actions.show(); } }), " shade unlikely tokens");
  const ofOne = state.tab === "conversation" || state.tab === "tokens";
  return [
    el("div", { class: "head" }, el("h3", {}, row.id), el("span", { class: "note" }, whereOf(row), " ",
      el("button", { type: "button", title: "previous (key k)", onclick: () => actions.step(-1) }, "↑"), " ", el("button", { type: "button", title: "next (key j)", onclick: () => actions.step(1) }, "↓"))),
    el("div", { class: "chips" }, facts),
    siblings.length > 1 && state.tab !== "group" ? el("div", { class: "siblings", role: "group", "aria-label": "siblings" }, siblings.map((one) => sibling(one, one === row, actions.open))) : null,
    episode.failure ? failureBox(episode.failure) : null,
    el("div", { class: "tabs", role: "tablist" }, tab("conversation", "Conversation"), siblings.length > 1 ? tab("group", `Group of ${siblings.length}`) : null,
      tab("tokens", "Tokens"), tab("rewards", "Rewards"), tab("json", "JSON"), state.tab === "tokens" ? shade : null),
    trajectories.length > 1 && ofOne ? el("div", { class: "tabs", role: "tablist" }, trajectories) : null,
    VIEWS[state.tab]({ row, episode, tokens, siblings, actions, shade: state.shade, trajectory: episode.trajectories[state.trajectory] }),
  ].filter(Boolean);
}

const ADVANTAGE = "From the rewards of its group, by the run's baseline and scale; penalties and KL terms that the trainer adds aren't in it.";

function sibling(row, current, open) {
  return el("button", { type: "button", "aria-current": String(current), onclick: () => open(row), title: row.id }, markOf(row), " ", el("i", {}, `#${row.index} `),
    el("b", {}, formatNumber(row.reward)), row.advantage === null ? null : el("span", { class: "advantage", title: ADVANTAGE }, signed(row.advantage)));
}

function failureBox([fault, component, message, traceback]) {
  return el("div", { class: "banner bad" }, el("p", {}, `Failed in the ${fault}${component === fault ? "" : ` (${component})`}`), el("pre", {}, message),
    traceback ? el("details", {}, el("summary", {}, "Traceback"), el("pre", {}, traceback)) : null);
}

function block(origin, text) {
  return el("div", { class: `text ${origin}` }, visible(text));
}

// The prompt as the model read it: its messages, and what the template put around them, such as the tools.
function promptOf(trajectory, tokens) {
  const plain = trajectory.prompt.map(([role, text]) => [role, "prompt", text]);
  const ids = trajectory.ids.slice(0, trajectory.promptLength);
  if (!ids.length || !ids.every((id) => Object.hasOwn(tokens, id))) return plain;
  const whole = ids.map((id) => tokens[id]).join("");
  const parts = [];
  let at = 0;
  for (const [role, text] of trajectory.prompt) {
    const found = whole.indexOf(text.trim(), at);
    if (found < 0) return [...plain, ["prompt as the model read it", "template", whole]];
    parts.push(["tools and template", "template", whole.slice(at, found)], [role, "prompt", text]);
    at = found + text.trim().length;
  }
  parts.push(["tools and template", "template", whole.slice(at)]);
  return parts.filter(([, origin, text]) => origin === "prompt" || text.trim().length > 60);
}

function conversation({ row, episode, tokens, trajectory }) {
  const parts = [];
  if (!trajectory) return el("p", { class: "empty" }, "Nothing was sampled.");
  parts.push(timeline(row, episode));
  for (const [role, origin, text] of promptOf(trajectory, tokens)) parts.push(el("p", { class: "who" }, el("b", {}, role)), block(origin, text));
  for (const turn of trajectory.turns) {
    const count = turn.segments.filter((segment) => segment[0] === "model").reduce((sum, segment) => sum + segment[2], 0);
    const rewards = episode.rewards.filter((entry) => entry[0] === turn.index);
    parts.push(el("p", { class: "who" }, el("b", {}, `turn ${turn.index + 1}`), `${count} tokens · ${seconds(turn.generate)}${turn.calls.length ? ` · tools ${seconds(turn.tools)}` : ""} · ended by ${turn.finish}`,
      rewards.map((entry) => chip(`${entry[1]} ${signed(entry[2])}`, entry[2] >= 0 ? "good" : "bad", `weight ${entry[3]}`))));
    for (const [origin, text] of turn.segments) parts.push(block(origin, text));
    parts.push(...turn.calls.map(callBox));
    for (const [role, text] of turn.replies) parts.push(el("p", { class: "who" }, el("b", {}, role)), block("tool", text));
  }
  parts.push(outcome(row, episode));
  return el("div", {}, parts);
}

function outcome(row, episode) {
  return el("div", { class: "chips" }, episode.answer === null ? null : chip(`answer: ${episode.answer}`, "", episode.answer),
    episode.truth === null ? null : chip(`expected: ${episode.truth}`, "", episode.truth));
}

function callBox(call) {
  const flags = [call.error ? chip(call.error, "bad") : chip("ok", "good"), call.unread ? chip(`not readable: ${call.unread}`, "bad") : null,
    call.truncated ? chip("cut", "warn", "The result was cut to its limit.") : null, call.done ? chip("ended the episode") : null,
    call.media ? chip(`${call.media} media`) : null, call.reward === null ? null : chip(`reward ${signed(call.reward)}`)];
  return el("div", { class: `call ${call.error ? "failed" : ""}` },
    el("p", { class: "who" }, el("b", {}, call.name || "(unreadable)"), `${seconds(call.seconds)} · started at ${seconds(call.started)}`, flags),
    el("pre", {}, visible(call.arguments)), block("tool", call.result));
}

// All of a group beside each other: what each wrote, what it got, how far that is from the others.
function groupView({ row, siblings, actions }) {
  const box = el("div", { class: "columns" }, siblings.map((one) => {
    const words = el("div", {}, el("p", { class: "note" }, "loading …"));
    actions.load(one).then(({ episode }) => words.replaceChildren(...said(episode), outcome(one, episode)), (error) => words.replaceChildren(String(error.message || error)));
    return el("section", { "aria-current": String(one === row) }, sibling(one, one === row, actions.open),
      el("p", { class: "note" }, `${one.calls} ${one.calls === 1 ? "call" : "calls"} · ${one.sampled} tokens · ${one.stop}`), words);
  }));
  requestAnimationFrame(() => { box.scrollLeft = box.children[siblings.indexOf(row)].offsetLeft - box.offsetLeft; });
  return box;
}

function said(episode) {
  const turns = episode.trajectories.flatMap((trajectory) => trajectory.turns).sort((a, b) => a.index - b.index);
  return turns.flatMap((turn) => [...turn.segments.map(([origin, text]) => block(origin, text)),
    ...turn.calls.map((call) => el("div", { class: `call ${call.error ? "failed" : ""}` }, el("p", { class: "who" }, el("b", {}, call.name || "(unreadable)"), call.error || ""), block("tool", call.result)))]);
}

function tokenView({ tokens, shade, trajectory }) {
  if (!trajectory || !trajectory.ids.length) return el("p", { class: "empty" }, "No tokens are known.");
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

function rewardView({ episode }) {
  if (!episode.rewards.length) return el("p", { class: "empty" }, "No rewards.");
  const rows = episode.rewards.map(([turn, source, value, weight, role]) => el("tr", {}, el("th", {}, source),
    el("td", {}, `${turn === null ? "whole" : `turn ${turn + 1}`}${role === null ? "" : ` of ${role}`}`), el("td", {}, formatNumber(value)), el("td", {}, formatNumber(weight)), el("td", {}, formatNumber(value * weight))));
  const head = ["source", "credited to", "value", "weight", "product"].map((name) => el("th", {}, name));
  return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows,
    el("tr", {}, el("th", {}, "sum"), el("td"), el("td"), el("td"), el("td", {}, formatNumber(episode.reward)))));
}

// The episode as it is stored, to be read, copied or kept.
function jsonView({ row, actions }) {
  const text = el("pre", { class: "text" }, "loading …");
  const said = el("output", { class: "note" });
  let whole = "";
  const copy = () => navigator.clipboard.writeText(whole).then(() => { said.textContent = "copied"; }, () => { said.textContent = "can't be copied here: select the text"; });
  const keep = () => {
    const address = URL.createObjectURL(new Blob([whole], { type: "application/json" }));
    el("a", { href: address, download: `${row.id.replace(/[^\w.#-]+/g, "_")}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };
  actions.record(row).then((record) => { whole = JSON.stringify(JSON.parse(record), null, 1); text.textContent = visible(whole.slice(0, 200000)) + (whole.length > 200000 ? "\n…" : ""); },
    (error) => { text.textContent = String(error.message || error); });
  return el("div", {}, el("p", { class: "who" }, el("button", { type: "button", onclick: copy }, "Copy"), el("button", { type: "button", onclick: keep }, "Download"), said), text);
}
