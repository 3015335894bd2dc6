// Where rows and episodes come from: the page itself, or the server that serves it.

function rowsOf(columns, lists, file) {
  return lists.map((list, line) => {
    const row = { file, line };
    columns.forEach((name, index) => { row[name] = list[index]; });
    const cut = row.id.lastIndexOf("#");
    row.group = row.group || row.id.slice(0, cut);
    row.index = Number(row.id.slice(cut + 1));
    return row;
  });
}

// `load(row)` promises the whole episode and the texts of its tokens.
function embedded(data) {
  const rows = rowsOf(data.columns, data.rows, "");
  return { rows, load: (row) => Promise.resolve({ episode: data.episodes[row.line], tokens: data.tokens }), start: () => {} };
}

const VERDICTS = ["failed", "tool error", "cut off", "wrong", "not judged", "correct"];
const CUT_OFF = ["max_tokens", "context_full", "timeout"];

// What a row is shown as: failures come first.
function verdictOf(row) {
  if (row.verdict) return row.verdict;
  const right = row.correct === null ? "not judged" : row.correct >= 1 ? "correct" : "wrong";
  row.verdict = { rank: 0, name: row.fault ? "failed" : right };
  row.marks = new Set([row.verdict.name]);
  if (row.errors.length) row.marks.add("tool error");
  if (CUT_OFF.includes(row.stop)) row.marks.add("cut off");
  row.verdict.rank = Math.min(...[...row.marks].map((mark) => VERDICTS.indexOf(mark)));
  return row.verdict;
}

function markOf(row) {
  const { name } = verdictOf(row);
  const [style, sign] = { failed: ["failed", "!"], wrong: ["no", "✗"], correct: ["yes", "✓"] }[name] || ["", "–"];
  return el("span", { class: `mark ${style}`, title: name }, sign);
}

function whereOf(row) {
  return `${row.step === null ? "unfinished step" : `step ${row.step}`}${row.kind ? ` · ${row.kind}` : ""}`;
}

function howOf(row) {
  const calls = `${row.calls} ${row.calls === 1 ? "call" : "calls"}${row.tools.length ? ` of ${row.tools.join(", ")}` : ""}`;
  return `${whereOf(row)} · ${calls} · ${row.sampled} tokens · ${row.stop}`;
}

// How it ended, as texts; those of errors come first.
function endOf(row) {
  const errors = [...(row.fault ? [`failed in the ${row.fault}`] : []), ...row.errors];
  const rest = [...(row.answer ? [`answered ${row.answer}`] : []), ...(row.truth !== null && verdictOf(row).name === "wrong" ? [`expected ${row.truth}`] : [])];
  return { errors, rest };
}

// All that the list shows of a row, and its id.
function searchText(row) {
  if (row.text === undefined) {
    const { errors, rest } = endOf(row);
    row.text = [row.id, verdictOf(row).name, row.question, howOf(row), formatNumber(row.reward), row.environment, ...errors, ...rest].join("\n").toLowerCase();
  }
  return row.text;
}
