// Reads the page's data and puts the parts in their places.

function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (theme) => { root.dataset.theme = theme; };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => set(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
}

// The bar names the parts that have something to show, and marks the one that is in view.
function startBar() {
  const buttons = [...document.querySelectorAll("#bar [data-part]")];
  const parts = buttons.map((button) => document.getElementById(button.dataset.part));
  buttons.forEach((button, index) => button.addEventListener("click", () => parts[index].scrollIntoView()));
  const mark = () => {
    const passed = parts.filter((part) => !part.hidden && part.getBoundingClientRect().top < innerHeight / 3);
    buttons.forEach((button, index) => {
      button.hidden = parts[index].hidden;
      button.setAttribute("aria-current", String(parts[index] === passed[passed.length - 1]));
    });
  };
  addEventListener("scroll", mark, { passive: true });
  return mark;
}

// Charts with a course; those that stayed the same are folded away, and what has one report stands in a table.
function drawSection(section, runs, drawn, unfolded) {
  const made = section.charts.flatMap((chart) => byKind(chart, runs))
    .filter((chart) => seriesOf(chart, runs).some((one) => one.steps.length > 1)).map((chart) => drawChart(chart, runs, 0));
  drawn.push(...made);
  const moving = made.filter((chart) => !chart.flat), flat = made.filter((chart) => chart.flat);
  const grid = (charts) => el("div", { class: "grid" }, charts.map((chart) => chart.box));
  const folded = flat.length ? el("details", { class: "flat", "data-section": section.title, open: unfolded.has(section.title), ontoggle: () => flat.forEach((chart) => chart.repaint()) },
    el("summary", {}, "constant: ", flat.map((chart) => `${chart.title} ${chart.now}`.trim()).join(" · ")), grid(flat)) : null;
  return made.length ? el("section", {}, el("h2", {}, section.title), moving.length ? grid(moving) : null, folded) : null;
}

function drawCharts(data, weight) {
  const drawn = [], unfolded = new Set([...document.querySelectorAll(".flat[open]")].map((one) => one.dataset.section));
  for (const name of ["results", "tools", "update"]) {
    const sections = data.sections.filter((section) => section.part === name).map((section) => drawSection(section, data.runs, drawn, unfolded));
    document.getElementById(`charts-${name}`).replaceChildren(...sections.filter(Boolean));
  }
  document.getElementById("controls").hidden = !drawn.length;
  if (data.runs.length > 1) {
    document.getElementById("key").replaceChildren(...data.runs.map((run, index) => el("li", {}, colored(index), run.name)));
  }
  for (const name of ["tools", "update", "log"]) {
    const part = document.getElementById(name);
    part.hidden = ![...part.querySelectorAll("[id]")].some((place) => place.children.length);
  }
  drawn.forEach((chart) => chart.repaint(weight));  // now that the cards have their widths
  return drawn;
}

function start() {
  startTheme();
  const data = JSON.parse(document.getElementById("data").textContent);
  const slider = document.getElementById("smoothing"), label = document.getElementById("smoothed"), mark = startBar();
  const weight = () => slider.value / 100;
  let drawn = [];
  const draw = (charts) => { drawn = drawCharts(charts, weight()); mark(); };
  const repaint = () => drawn.forEach((chart) => chart.repaint(weight()));
  slider.addEventListener("input", () => { label.textContent = slider.value === "0" ? "off" : weight().toFixed(2); repaint(); });
  addEventListener("resize", repaint);
  draw(data);
  const source = data.served ? served(data) : embedded(data);
  let browser = null;
  const changed = () => {
    if (browser) browser.refresh();
    else if (source.rows.length) {
      document.getElementById("episodes").hidden = false;
      browser = episodeBrowser(source);
    }
  };
  changed();
  source.start(changed, draw);
  document.documentElement.dataset.ready = "yes";
}

start();
