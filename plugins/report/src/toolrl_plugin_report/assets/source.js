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
  return { rows, partial: rows.length < data.total, load: (row) => Promise.resolve({ episode: data.episodes[row.line], tokens: data.tokens }), start: () => {} };
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
  return `${whereOf(row)} · ${row.stop} · ${calls} · ${row.sampled} tokens · ${seconds(row.seconds)}`;
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

// From a server: rows arrive newest first, and again while the run goes on; an episode when it is opened.
function served(data) {
  const files = new Map(), loaded = new Map();
  const source = { rows: [], load, start };
  let after = 0, stamp = "", shown = -Infinity, waiting = false;

  async function ask(path, values) {
    const answer = await fetch(`${path}?${new URLSearchParams(values)}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  async function load(row) {
    const key = `${row.file} ${row.id}`;
    if (!loaded.has(key)) {
      if (loaded.size > 60) loaded.clear();
      loaded.set(key, ask("episode", { file: row.file, line: row.line, id: row.id }));
    }
    try {
      return await loaded.get(key);
    } catch (error) {
      loaded.delete(key);
      throw error;
    }
  }

  async function start(changed, draw) {
    let wait = 10;
    try {
      const answer = await ask("live", { after, stamp });
      for (const { file, rows } of answer.files) files.set(file, rowsOf(data.columns, rows, file));
      waiting = waiting || answer.files.length > 0;
      [after, stamp, wait] = [answer.after, answer.stamp, answer.more ? 0 : answer.wait];
      document.getElementById("note").textContent = answer.note;
      // Made and escaped by the server, as the page itself was.
      for (const [id, html] of Object.entries(answer.parts || {})) document.getElementById(id).innerHTML = html;
      if (answer.charts) draw(answer.charts);
      if (waiting && (!answer.more || performance.now() - shown > 1500)) {
        source.rows = [...files.values()].flat();
        changed();
        [shown, waiting] = [performance.now(), false];
      }
      document.documentElement.dataset.loaded = answer.more || wait < 1 ? "part" : "all";
    } catch (error) {
      document.getElementById("note").textContent = `No answer from the server (${error.message}); the page shows what it had until then.`;
    }
    setTimeout(start, wait * 1000, changed, draw);
  }
  return source;
}
