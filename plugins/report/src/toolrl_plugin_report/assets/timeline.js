// When the model wrote and when each tool call ran, over the seconds of an episode.

// The spans of an episode, [start, end, what, style, text]. A turn's start isn't stored: it ends where its calls begin.
function spansOf(episode) {
  const spans = [];
  let at = 0;
  const turns = episode.trajectories.flatMap((trajectory) => trajectory.turns).sort((a, b) => a.index - b.index);
  for (const turn of turns) {
    const end = turn.calls.length ? Math.max(at, Math.min(...turn.calls.map((call) => call.started))) : at + turn.generate;
    spans.push([Math.max(at, end - turn.generate), end, `turn ${turn.index + 1}`, "model", seconds(turn.generate)]);
    for (const call of turn.calls) spans.push([call.started, call.started + call.seconds, call.name || "(unreadable)", call.error ? "failed" : "tool", `${seconds(call.seconds)}${call.error ? ` · ${call.error}` : ""}`]);
    at = Math.max(end, ...turn.calls.map((call) => call.started + call.seconds));
  }
  return spans;
}

// Spans that overlap lie in lanes below each other. Nothing for an episode without calls.
function timeline(row, episode) {
  const spans = spansOf(episode), total = Math.max(row.seconds, ...spans.map((span) => span[1])), lanes = [];
  if (!total || !spans.some((span) => span[3] !== "model")) return null;
  const box = el("div", { class: "timeline", role: "img", "aria-label": `${spans.length} turns and calls over ${seconds(total)}` });
  for (const [start, end, what, style, text] of spans) {
    let lane = lanes.findIndex((free) => free <= start + 1e-6);
    if (lane < 0) lane = lanes.length;
    lanes[lane] = end;
    const bar = el("span", { class: style, title: `${visible(what)} · ${text} · from ${seconds(start)}` }, visible(what));
    Object.assign(bar.style, { left: `${100 * start / total}%`, width: `${Math.max(0.4, 100 * (end - start) / total)}%`, top: `${18 * lane}px` });
    box.append(bar);
  }
  box.style.height = `${18 * lanes.length}px`;
  return el("div", { class: "times" }, box, el("p", { class: "note" }, el("span", {}, "0"), el("span", {}, seconds(total))));
}
