// Line charts and stacked areas.

// Round numbers that cover [low, high] in about four steps.
function ticksFor(low, high) {
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const ticks = [];
  for (let index = Math.floor(low / step + 1e-9); index * step <= high + step * 0.999; index++) ticks.push(index * step);
  return ticks;
}

function formatTick(value, step, unit) {
  const scale = unit === "share" ? 100 : 1;
  if (value === 0) return "0" + (unit === "share" ? " %" : "");
  const digits = Math.max(0, -Math.floor(Math.log10(step * scale) + 1e-9));
  const size = Math.abs(value * scale);
  if (digits > 4 || size >= 1e6) return value.toExponential(1);
  // 2.5 needs a digit more than its power of ten says
  const scaled = step * scale * 10 ** digits;
  const exact = Math.abs(scaled - Math.round(scaled)) > 1e-6 ? digits + 1 : digits;
  return (value * scale).toFixed(exact) + (unit === "share" ? " %" : "");
}

// Exponential moving average, corrected for its start; holes stay holes.
function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

// The confidence interval of each value of a curve, or else the value ± its standard error.
function intervalsOf(curves, metric) {
  const [low, high, error] = ["interval/low", "interval/high", "stderr"].map((end) => curves[`${metric}/${end}`]);
  if (low && high) return low[1].map((value, index) => [value, high[1][index]]);
  return error && error[1].map((value, index) => [curves[metric][1][index] - value, curves[metric][1][index] + value]);
}

// A smoothed curve has none: they are of the values themselves.
function intervalAt(one, index) {
  const ends = one.drawn === one.values && one.intervals && one.intervals[index];
  return ends && ends[0] !== null && ends[1] !== null ? ends : null;
}

// What a chart draws: one series for each run, kind and metric that has values.
function seriesOf(chart, runs) {
  const found = [];
  runs.forEach((run, runIndex) => {
    for (const kind of Object.keys(run.curves).sort(evaluationLast)) {
      if (chart.kind && kind !== chart.kind) continue;
      chart.metrics.forEach((metric, metricIndex) => {
        const curve = run.curves[kind][metric];
        if (curve) found.push({ run: run.name, runIndex, kind, metric, metricIndex, steps: curve[0], values: curve[1], intervals: intervalsOf(run.curves[kind], metric) });
      });
    }
  });
  const kinds = [...new Set(found.map((one) => one.kind))].sort(evaluationLast);
  const many = { run: runs.length > 1, kind: kinds.length > 1, metric: new Set(found.map((one) => one.metric)).size > 1 };
  // The longest beginning, up to a slash, that all the metrics share says nothing in a legend.
  const shared = chart.metrics.length > 1 ? commonPrefix(chart.metrics) : 0;
  for (const one of found) {
    const parts = [many.run && one.run, many.metric && one.metric.slice(shared), many.kind && one.kind];
    one.label = parts.filter(Boolean).join(" · ") || one.kind;
    one.color = many.run ? one.runIndex : many.metric ? one.metricIndex : kinds.indexOf(one.kind);
    const rank = many.run && many.metric ? one.metricIndex : 0;
    one.dash = one.kind === "eval" && many.kind && (many.run || many.metric) ? "7 3" : ["", "2 3", "9 3 2 3"][rank % 3];
    one.points = one.kind === "eval" || one.steps.length < 3;
  }
  return chart.stacked && !many.run ? stackable(found) : found;
}

// The stages of a step: `time/step` becomes what the others leave of it.
function stackable(series) {
  const whole = series.find((one) => one.metric === "time/step");
  const stages = series.filter((one) => one !== whole);
  if (!whole || !stages.length || series.some((one) => one.steps.length !== whole.steps.length || one.values.includes(null))) return series;
  const rest = whole.values.map((value, index) => Math.max(0, value - stages.reduce((sum, one) => sum + one.values[index], 0)));
  return [...stages, { ...whole, label: "other", values: rest }].map((one) => ({ ...one, stacked: true, dash: "" }));
}

// Charts of several metrics show training and evaluation apart.
function byKind(chart, runs) {
  const kinds = new Set(seriesOf(chart, runs).map((one) => one.kind));
  if (kinds.size < 2 || chart.metrics.length < 2) return [chart];
  return [...kinds].sort(evaluationLast).map((kind) => ({ ...chart, kind, title: `${chart.title} · ${kind}` }));
}

function isFlat(series) {
  return series.every((one) => one.values.every((value) => value !== null && Math.abs(value - one.values[0]) <= 1e-9 * Math.abs(one.values[0])));
}

function evaluationLast(a, b) {
  return (a === "eval") - (b === "eval");
}

function commonPrefix(names) {
  let prefix = names[0].slice(0, names[0].lastIndexOf("/") + 1);
  while (prefix && !names.every((name) => name.startsWith(prefix))) {
    prefix = prefix.slice(0, prefix.lastIndexOf("/", prefix.length - 2) + 1);
  }
  return prefix.length;
}

function range(series, unit) {
  let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
  for (const one of series) {
    one.drawn.forEach((value, index) => {
      if (value === null) return;
      const ends = intervalAt(one, index) || [value, value];
      low = Math.min(low, one.stacked ? 0 : value, ends[0]);
      high = Math.max(high, (one.base ? one.base[index] : 0) + value, ends[1]);
    });
    for (const step of one.steps) { first = Math.min(first, step); last = Math.max(last, step); }
  }
  if (low === Infinity) { low = 0; high = 1; }
  if (low >= 0 && low < 0.5 * high) low = 0;
  const shares = unit === "share" && series.every((one) => one.drawn.every((value) => value === null || (value >= 0 && value <= 1)));
  if (shares && high > 0.5) { high = 1; if (low < 0.5) low = 0; }
  if (shares && low < 0) low = 0;
  if (high - low < 1e-12 * Math.max(Math.abs(high), 1e-9)) { const pad = Math.abs(high) / 10 || 1; low -= low > 0 || low < 0 ? pad : 0; high += pad; }
  if (shares && high > 1) { high = 1; low = Math.min(low, 0.9); }
  const ticks = ticksFor(low, high);
  return { low: ticks[0], high: ticks[ticks.length - 1], ticks, first, last: last === first ? first + 1 : last };
}

function drawChart(chart, runs, smoothing) {
  const series = seriesOf(chart, runs);
  const box = el("div", { class: "chart" });
  const flat = isFlat(series);
  const latest = (one) => formatNumber(one.values[one.values.length - 1], chart.unit);
  const now = series.length === 1 ? latest(series[0]) : "";
  box.append(el("div", { class: "top" }, el("h3", { title: chart.note || chart.metrics.join(", ") }, chart.title),
    el("span", { class: "now", title: "latest" }, now)));
  const canvas = svg("svg", { role: "img", "aria-label": chart.title });
  box.append(canvas);
  const legend = series.length > 1 || series[0].label !== "train"
    ? series.slice(0, 14).map((one) => el("li", {}, lineSample(one), one.label, now ? "" : el("b", { title: "latest" }, latest(one)))) : [];
  if (series.length > 14) legend.push(el("li", {}, `and ${series.length - 14} more`));
  const holes = series.reduce((sum, one) => sum + one.values.filter((item) => item === null).length, 0);
  if (holes) legend.push(el("li", {}, `✕ ${holes} not finite`));
  box.append(el("ul", { class: "legend" }, legend));
  const state = { chart, series, canvas, box, smoothing };
  paint(state);
  canvas.addEventListener("pointermove", (event) => hover(state, event));
  canvas.addEventListener("pointerleave", () => leave(state));
  return { box, flat, title: chart.title, now: new Set(series.map(latest)).size === 1 ? latest(series[0]) : "", repaint: (weight) => { state.smoothing = weight; paint(state); } };
}

function lineSample(one) {
  const sample = svg("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" });
  sample.append(svg("line", { x1: 0, x2: 18, y1: 5, y2: 5, stroke: `var(--c${one.color % 8})`, "stroke-width": 2.4, "stroke-dasharray": one.dash }));
  return sample;
}

const MARGIN = { left: 46, right: 10, top: 8, bottom: 20 };

function paint(state) {
  const { canvas, series, chart } = state;
  const width = canvas.clientWidth || 370, height = 170;
  canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
  canvas.replaceChildren();
  let below = null;
  for (const one of series) {
    one.drawn = one.values.length > 8 ? smooth(one.values, state.smoothing) : one.values;
    if (!one.stacked) continue;
    one.base = below || one.drawn.map(() => 0);
    below = one.drawn.map((value, index) => value + one.base[index]);
  }
  const scale = range(series, chart.unit);
  const x = (step) => MARGIN.left + (step - scale.first) / (scale.last - scale.first) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => height - MARGIN.bottom - (value - scale.low) / (scale.high - scale.low) * (height - MARGIN.top - MARGIN.bottom);
  Object.assign(state, { x, y, width, height });
  const step = scale.ticks.length > 1 ? scale.ticks[1] - scale.ticks[0] : 1;
  for (const tick of scale.ticks) {
    canvas.append(svg("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick), stroke: "var(--grid)" }));
    canvas.append(svg("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, formatTick(tick, step, chart.unit)));
  }
  const ends = series.some((one) => one.steps.length > 1) ? ticksFor(scale.first, scale.last) : [scale.first];
  for (const tick of ends) {
    if (tick < scale.first || tick > scale.last || !Number.isInteger(tick)) continue;
    canvas.append(svg("text", { x: x(tick), y: height - 4, "text-anchor": "middle" }, String(tick)));
  }
  for (const one of series) (one.stacked ? drawArea : drawSeries)(canvas, one, x, y, height);
}

function drawArea(canvas, one, x, y) {
  const top = one.drawn.map((value, index) => value + one.base[index]);
  const back = pathOf([...one.steps].reverse(), [...one.base].reverse(), x, y).replace("M", "L");
  canvas.append(svg("path", { d: `${pathOf(one.steps, top, x, y)}${back}Z`, fill: `var(--c${one.color % 8})`, "fill-opacity": 0.75 }));
}

function drawSeries(canvas, one, x, y, height) {
  const color = `var(--c${one.color % 8})`;
  if (one.drawn !== one.values) canvas.append(svg("path", { d: pathOf(one.steps, one.values, x, y), fill: "none", stroke: color, "stroke-opacity": 0.22, "stroke-width": 1 }));
  canvas.append(svg("path", { d: pathOf(one.steps, one.drawn, x, y), fill: "none", stroke: color, "stroke-width": one.kind === "eval" ? 2.2 : 1.6, "stroke-linejoin": "round", "stroke-dasharray": one.dash }));
  one.steps.forEach((step, index) => {
    const value = one.drawn[index];
    const ends = intervalAt(one, index);
    if (ends) canvas.append(svg("line", { x1: x(step), x2: x(step), y1: y(ends[0]), y2: y(ends[1]), stroke: color, "stroke-opacity": 0.6, class: "stderr" }));
    if (value === null) canvas.append(svg("text", { x: x(step), y: height - MARGIN.bottom - 2, "text-anchor": "middle", style: "fill: var(--bad)" }, "✕"));
    else if (one.points && one.steps.length <= 60) canvas.append(svg("circle", { cx: x(step), cy: y(value), r: 2.8, fill: color }));
  });
}

function pathOf(steps, values, x, y) {
  let path = "", pen = "M";
  steps.forEach((step, index) => {
    if (values[index] === null) { pen = "M"; return; }
    path += `${pen}${x(step).toFixed(1)} ${y(values[index]).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

// The step nearest to the pointer, and each series' value there.
function hover(state, event) {
  leave(state);
  const bounds = state.canvas.getBoundingClientRect();
  const at = event.clientX - bounds.left;
  let nearest = null;
  for (const one of state.series) for (const step of one.steps) {
    if (nearest === null || Math.abs(state.x(step) - at) < Math.abs(state.x(nearest) - at)) nearest = step;
  }
  if (nearest === null) return;
  const left = state.x(nearest);
  state.cursor = svg("line", { x1: left, x2: left, y1: MARGIN.top, y2: state.height - MARGIN.bottom, stroke: "var(--soft)", "stroke-dasharray": "2 2" });
  state.canvas.append(state.cursor);
  const rows = state.series.filter((one) => one.steps.includes(nearest)).map((one) => {
    const ends = intervalAt(one, one.steps.indexOf(nearest));
    const shown = formatNumber(one.values[one.steps.indexOf(nearest)], state.chart.unit) + (ends ? ` [${ends.map((end) => formatNumber(end, state.chart.unit)).join(", ")}]` : "");
    return el("tr", {}, el("th", {}, colored(one.color), one.label), el("td", {}, shown));
  });
  state.tip = el("div", { class: "tip" }, el("b", {}, `step ${nearest}`), el("table", {}, rows));
  state.box.append(state.tip);
  state.tip.style.top = "44px";
  if (left > state.width / 2) state.tip.style.right = `${state.width - left + 28}px`;
  else state.tip.style.left = `${left + 28}px`;
}

function leave(state) {
  if (state.cursor) state.cursor.remove();
  if (state.tip) state.tip.remove();
  state.cursor = state.tip = null;
}
