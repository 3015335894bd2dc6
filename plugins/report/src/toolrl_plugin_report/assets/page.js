// Reads the page's data and puts the parts in their places.

function startTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const set = (theme) => { root.dataset.theme = theme; };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => set(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => set(root.dataset.theme === "dark" ? "light" : "dark"));
}

function startCharts(data) {
  const place = document.getElementById("charts"), drawn = [];
  for (const section of data.sections) {
    const grid = el("div", { class: "grid" });
    place.append(el("section", {}, el("h2", {}, section.title), grid));
    for (const chart of section.charts) {
      const made = drawChart(chart, data.runs, 0);
      grid.append(made.box);
      drawn.push(made);
    }
  }
  const slider = document.getElementById("smoothing"), label = document.getElementById("smoothed");
  const repaint = () => drawn.forEach((chart) => chart.repaint(slider.value / 100));
  slider.addEventListener("input", () => { label.textContent = slider.value === "0" ? "off" : (slider.value / 100).toFixed(2); repaint(); });
  addEventListener("resize", repaint);
  if (data.runs.length > 1) {
    document.getElementById("key").append(...data.runs.map((run, index) => el("li", {}, colored(index), run.name)));
  }
  document.getElementById("controls").hidden = !drawn.length;
  repaint();  // now that the cards have their widths
}

function start() {
  startTheme();
  const data = JSON.parse(document.getElementById("data").textContent);
  startCharts(data);
  if (data.episodes.length) {
    document.getElementById("episodes").hidden = false;
    episodeBrowser(data.episodes, data.tokens);
  }
  document.documentElement.dataset.ready = "yes";
}

start();
