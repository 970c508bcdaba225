// The page of `ale compare`: a chart for each metric, with a line for each run.

const data = JSON.parse(document.getElementById("data").textContent);
const place = document.getElementById("charts");
const figures = data.charts.map((spec) => lineChart(spec, {}));
if (figures.length) place.append(el("section", { class: "charts" }, el("h3", {}, "Curves"), el("div", { class: "grid two" }, figures)));
document.documentElement.dataset.ready = "1";
