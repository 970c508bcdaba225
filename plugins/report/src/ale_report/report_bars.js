// Horizontal bars: a row a name, a bar a series; an earlier round is an outline, the newest one is solid.

function barChart(spec) {
  const plot = el("div", { class: "plot", role: "img", "aria-label": spec.title + ". The numbers are in the table below." });
  const several = spec.series.length > 1;
  const thick = several ? 12 : 15, row = spec.series.length * (thick + 2) + 12;
  const height = spec.bars.length * row + 6;
  plot.style.height = height + "px";
  let drawn = 0;

  function draw() {
    const width = Math.max(220, plot.clientWidth);
    drawn = width;
    const longest = Math.max(...spec.bars.map((b) => b.label.length));
    const left = Math.min(width * 0.4, longest * 7 + 14), right = width - 84;
    const finite = spec.bars.flatMap((b) => b.values).filter(Number.isFinite);
    const most = spec.format === "share" ? 1 : Math.max(...finite, 1e-9);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    if (spec.format === "share") {
      for (const tick of [0, 0.5, 1]) {
        const x = left + tick * (right - left);
        root.append(svg("line", { x1: x, x2: x, y1: 0, y2: height, class: "grid" }));
      }
    }
    spec.bars.forEach((bar, i) => {
      const top = i * row + 8;
      const label = bar.label.length * 7 > left ? bar.label.slice(0, Math.floor(left / 7) - 2) + "…" : bar.label;
      root.append(svg("text", { x: left - 8, y: top + (row - 12) / 2 + 4, "text-anchor": "end", class: "name" }, label));
      bar.values.forEach((value, k) => {
        const y = top + k * (thick + 2);
        const length = Number.isFinite(value) ? Math.max(1, value / most * (right - left)) : 0;
        const kind = several && k === 0 ? "bar earlier" : "bar";
        root.append(
          svg("rect", { x: left, y, width: length, height: thick - 1, rx: 2, class: kind },
            svg("title", {}, `${bar.label}, ${spec.series[k]}: ${show(value, spec.format)}`)),
          svg("text", { x: left + length + 6, y: y + thick - (several ? 2 : 3), class: "value" }, show(value, spec.format)));
      });
    });
    plot.replaceChildren(root);
  }

  new ResizeObserver(() => {
    if (Math.abs(drawn - Math.max(220, plot.clientWidth)) > 1) draw();
  }).observe(plot);
  const key = several && el("ul", { class: "legend" }, spec.series.map((name, k) => el("li", {},
    svg("svg", { width: 22, height: 12, "aria-hidden": "true" },
      svg("rect", { x: 1, y: 2, width: 20, height: 8, rx: 2, class: k === 0 ? "bar earlier" : "bar" })), name)));
  return el("figure", { class: "chart", id: "chart-" + spec.id },
    el("figcaption", {}, el("h4", {}, spec.title, spec.x && el("small", {}, spec.x)), key), plot, spec.note && el("p", { class: "note" }, spec.note),
    tableOf(spec.title, ["", ...spec.series],
      () => spec.bars.map((b) => [b.label, ...b.values.map((v) => show(v, spec.format))])));
}
