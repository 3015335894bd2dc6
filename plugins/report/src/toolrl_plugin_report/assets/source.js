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

// `load(row)` promises the whole episode and the texts of its tokens, `record(row)` its JSON. `search(words, then)` looks
// for words in all conversations and calls `then` if it takes time; `says(row)` tells whether a conversation holds them.
function embedded(data) {
  const rows = rowsOf(data.columns, data.rows, ""), episode = (row) => data.episodes[row.line];
  let words = "";
  return {
    rows, partial: rows.length < data.total, start: () => {},
    load: (row) => Promise.resolve({ episode: episode(row), tokens: data.tokens }),
    record: (row) => Promise.resolve(JSON.stringify(episode(row))),
    search: (wanted) => { words = wanted.toLowerCase().split(/\s+/).join(" "); },
    says: (row) => (row.said = row.said || spoken(episode(row))).includes(words),
  };
}

// All texts of an episode, as `view.said` has them.
function spoken(episode) {
  const parts = [episode.answer, ...(episode.failure ? episode.failure.slice(2) : [])];
  for (const trajectory of episode.trajectories) {
    parts.push(...trajectory.prompt.map(([, text]) => text));
    for (const turn of trajectory.turns) {
      parts.push(...turn.segments.map(([, text]) => text), ...turn.replies.map(([, text]) => text));
      for (const call of turn.calls) parts.push(call.name, call.arguments, call.result, call.error);
    }
  }
  return parts.filter(Boolean).join(" ").split(/\s+/).join(" ").toLowerCase();
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
  const source = { rows: [], load, record, search, says, start };
  let after = 0, stamp = "", shown = -Infinity, waiting = false;
  let words = "", found = new Map(), fresh = true, timer = 0;

  async function ask(path, values) {
    const answer = await fetch(`${path}?${new URLSearchParams(values)}`);
    if (!answer.ok) throw new Error(await answer.text());
    return answer;
  }

  const placeOf = (row) => ({ file: row.file, line: row.line, id: row.id });

  async function record(row) {
    return (await ask("record", placeOf(row))).text();
  }

  // The server searches, a moment after the last letter was typed, and again when new episodes have come.
  function search(wanted, then) {
    if (wanted === words && fresh) return;
    if (wanted !== words) found = new Map();
    [words, fresh] = [wanted, true];
    clearTimeout(timer);
    timer = wanted && setTimeout(async () => {
      const answer = await ask("search", { words: wanted }).then((said) => said.json(), () => ({ files: {} }));
      if (wanted !== words) return;
      found = new Map(Object.entries(answer.files).map(([name, lines]) => [name, new Set(lines)]));
      then();
    }, 200);
  }

  function says(row) {
    return found.has(row.file) && found.get(row.file).has(row.line);
  }

  async function load(row) {
    const key = `${row.file} ${row.id}`;
    if (!loaded.has(key)) {
      if (loaded.size > 60) loaded.clear();
      loaded.set(key, ask("episode", placeOf(row)).then((answer) => answer.json()));
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
      const answer = await (await ask("live", { after, stamp })).json();
      for (const { file, rows } of answer.files) files.set(file, rowsOf(data.columns, rows, file));
      waiting = waiting || answer.files.length > 0;
      fresh = fresh && answer.files.length === 0;
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
