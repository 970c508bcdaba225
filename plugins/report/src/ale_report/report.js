// The page: charts by section, a box for every other metric, what happened, and the rollouts.

const data = JSON.parse(document.getElementById("data").textContent);

function metricBox() {
  const stages = Object.entries(data.metrics);
  if (!stages.length) return null;
  const box = el("select", { id: "metric" }, stages.map(([stage, table]) => el("optgroup", { label: stage },
    Object.keys(table.values).sort().map((name) => el("option", { value: stage + "\n" + name }, `${stage}: ${name}`)))));
  const place = el("div", {});
  const draw = () => {
    const [stage, metric] = box.value.split("\n");
    place.replaceChildren(lineChart({
      id: "metric", title: `${stage}: ${metric}`, x: stage + " step", wide: true, format: "number",
      series: [{ label: metric, stage, metric }],
    }, data.metrics));
  };
  box.addEventListener("change", draw);
  draw();
  return el("section", { class: "charts" }, el("h3", {}, "Any metric"),
    el("p", { class: "choose" }, el("label", { for: "metric" }, "Metric "), box), place);
}

function chartSections() {
  const sections = new Map();
  for (const spec of data.charts) {
    if (!sections.has(spec.section)) sections.set(spec.section, []);
    sections.get(spec.section).push(spec.bars ? barChart(spec) : lineChart(spec, data.metrics));
  }
  return [...sections].map(([name, figures]) =>
    el("section", { class: "charts" }, el("h3", {}, name), el("div", { class: name === "Outcome" ? "grid two" : "grid" }, figures)));
}

const place = document.getElementById("charts");
place.append(...chartSections());
if (data.timeline) place.append(timeline(data.timeline));
const box = metricBox();
if (box) place.append(box);
else place.append(el("p", { class: "notice" }, "This run has no metrics yet."));
document.getElementById("events").append(...data.events.map((table) => {
  const rows = () => table.rows.map((cells) => cells.map((cell) => typeof cell === "string" ? cell : show(cell, "number")));
  return tableOf(`Events: ${table.kind}`, table.heads, rows, [el("code", {}, table.kind), " " + show(table.count, "number")]);
}));
const home = document.getElementById("browser");
if (data.trajectories.length) browser(data, home);
else home.replaceWith(el("p", { class: "notice" }, "This run has no rollouts yet."));
// The place that the address names was not there, or elsewhere, when the file was opened.
const named = location.hash.startsWith("#t=") ? "browser" : location.hash.slice(1);
const target = named && document.getElementById(named);
if (target) target.scrollIntoView({ behavior: "instant" });
document.documentElement.dataset.ready = "1";
