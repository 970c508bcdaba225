// Line charts over steps: one SVG, drawn at the size that it has, with a crosshair for mouse, finger and arrow keys.

const COLOURS = 6;
const MARKS = ["circle", "square", "triangle", "diamond"];
// Each line has a number, which is that of its run on every chart of a page: 12 of them differ in colour or mark.
const style = (number) => "s" + number % COLOURS;
const markOf = (number) => MARKS[(number + Math.floor(number / COLOURS)) % MARKS.length];
const MARGIN = { top: 10, right: 14, bottom: 40, left: 52 };

// The points of a series: {x, y, low, high, label}; y is null where there is none, text where it is not finite.
function pointsOf(series, tables) {
  if (series.points) return series.points;
  const table = tables[series.stage];
  return table.steps.map((x, i) => ({ x, y: table.values[series.metric][i] })).filter((p) => p.y !== null);
}

function mark(kind, x, y, size, attributes) {
  if (kind === "square") {
    return svg("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...attributes });
  }
  if (kind === "triangle") {
    const d = `M${x},${y - size * 1.2}L${x + size * 1.15},${y + size}L${x - size * 1.15},${y + size}Z`;
    return svg("path", { d, ...attributes });
  }
  if (kind === "diamond") {
    const d = `M${x},${y - size * 1.3}L${x + size * 1.3},${y}L${x},${y + size * 1.3}L${x - size * 1.3},${y}Z`;
    return svg("path", { d, ...attributes });
  }
  return svg("circle", { cx: x, cy: y, r: size, ...attributes });
}

function legend(lines) {
  return el("ul", { class: "legend" }, lines.map((line) => el("li", {},
    svg("svg", { width: 30, height: 12, "aria-hidden": "true", class: style(line.number) },
      svg("line", { x1: 0, x2: 30, y1: 6, y2: 6, class: "line" }), mark(markOf(line.number), 15, 6, 3, { class: "mark" })), line.label)));
}

function lineChart(spec, tables) {
  const lines = spec.series.map((s, i) => ({ label: s.label, number: s.style ?? i, points: pointsOf(s, tables) }));
  const xs = [...new Set(lines.flatMap((l) => l.points.map((p) => p.x)))].sort((a, b) => a - b);
  const names = new Map((spec.ticks || []).concat(
    lines.flatMap((l) => l.points.filter((p) => p.label).map((p) => [p.x, p.label]))));
  const at = (line, x) => line.points.find((p) => p.x === x);
  const nameOf = (x) => names.get(x) || spec.x + " " + show(x);
  const valueOf = (p) => p === undefined ? "–" : show(p.y, spec.format)
    + (typeof p.low === "number" ? ` (${show(p.low, spec.format)} to ${show(p.high, spec.format)})` : "");

  const plot = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": summary() });
  const tip = el("div", { class: "tip", hidden: true });
  const height = spec.wide ? 280 : 200;
  plot.style.height = height + "px";
  let scale = null, chosen = -1;

  function summary() {
    const parts = lines.map((l) => {
      const finite = l.points.filter((p) => Number.isFinite(p.y));
      if (!finite.length) return `${l.label}: no finite numbers`;
      const last = finite[finite.length - 1];
      return `${l.label}: from ${show(finite[0].y, spec.format)} to ${show(last.y, spec.format)} at ${nameOf(last.x)}`;
    });
    return `${spec.title}. ${parts.join("; ")}. Arrow keys read the points.`;
  }

  function draw() {
    const width = Math.max(220, plot.clientWidth);
    scale = scales(lines, spec, width, height);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    drawAxes(root, spec, scale, names);
    lines.forEach((line) => root.append(drawLine(line, scale)));
    root.append(svg("g", { class: "cross" }));
    plot.replaceChildren(root, tip);
    if (chosen >= 0) choose(chosen);
  }

  function choose(index) {
    chosen = index;
    const cross = plot.querySelector(".cross");
    cross.replaceChildren();
    tip.hidden = index < 0;
    if (index < 0) return;
    const x = xs[index], px = scale.x(x);
    cross.append(svg("line", { x1: px, x2: px, y1: scale.top, y2: scale.bottom }));
    lines.forEach((line) => {
      const p = at(line, x);
      if (p && Number.isFinite(p.y)) cross.append(mark(markOf(line.number), px, scale.y(p.y), 4.5, { class: "mark " + style(line.number) }));
    });
    const rows = lines.map((line) => [line.label, valueOf(at(line, x))]);
    tip.replaceChildren(el("strong", {}, nameOf(x)), ...rows.map(([label, value]) =>
      el("span", {}, lines.length > 1 ? label + " " : "", el("b", {}, value))));
    const room = scale.width - tip.offsetWidth - 4;
    tip.style.left = Math.max(4, Math.min(room, px > scale.width / 2 ? px - tip.offsetWidth - 12 : px + 12)) + "px";
  }

  plot.addEventListener("pointermove", (event) => {
    const px = event.clientX - plot.getBoundingClientRect().left;
    const gaps = xs.map((x) => Math.abs(scale.x(x) - px));
    choose(gaps.indexOf(Math.min(...gaps)));
  });
  plot.addEventListener("pointerleave", () => choose(-1));
  plot.addEventListener("blur", () => choose(-1));
  plot.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: xs.length - 1, Escape: -1 }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    choose(event.key === "Escape" ? -1 : Math.max(0, Math.min(xs.length - 1, move)));
    if (chosen >= 0) announce(nameOf(xs[chosen]) + ": "
      + lines.map((line) => line.label + " " + valueOf(at(line, xs[chosen]))).join(", "));
  });
  new ResizeObserver(() => {
    if (!scale || Math.abs(scale.width - Math.max(220, plot.clientWidth)) > 1) draw();
  }).observe(plot);

  const every = Math.max(...spec.series.map((s) => (s.stage && tables[s.stage].every) || 1));
  const notes = [spec.note, every > 1 ? `Every ${every}th step is shown.` : ""].filter(Boolean).join(" ");
  return el("figure", { class: spec.wide ? "chart wide" : "chart", id: "chart-" + spec.id },
    el("figcaption", {}, el("h4", {}, spec.title, spec.y && el("small", {}, spec.y)), lines.length > 1 && legend(lines)),
    plot, notes && el("p", { class: "note" }, notes),
    tableOf(spec.title, [spec.x, ...lines.map((l) => l.label)],
      () => xs.map((x) => [names.get(x) || show(x), ...lines.map((line) => valueOf(at(line, x)))])));
}

function scales(lines, spec, width, height) {
  const all = lines.flatMap((l) => l.points);
  const ys = all.flatMap((p) => [p.y, p.low, p.high]).filter(Number.isFinite);
  if (spec.zero) ys.push(0);
  let low = ys.length ? Math.min(...ys) : 0, high = ys.length ? Math.max(...ys) : 1;
  if (low === high) {
    const pad = Math.abs(low) / 2;
    [low, high] = low === 0 ? [0, spec.format === "share" ? 0.1 : 1] : [low - pad, high + pad];
  }
  const ticks = niceTicks(low, high, 4);
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : high - low;
  low = Math.min(low, Math.floor(low / step + 1e-9) * step);
  high = Math.max(high, Math.ceil(high / step - 1e-9) * step);
  if (spec.format === "share") high = Math.max(low, Math.min(1, high));
  let left = Math.min(...all.map((p) => p.x)), right = Math.max(...all.map((p) => p.x));
  if (left === right) [left, right] = [left - 1, right + 1];
  const widest = Math.max(...niceTicks(low, high, 4).map((tick) => showTick(tick, spec.format).length));
  const box = { left: Math.max(MARGIN.left, widest * 7 + 14), right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const span = Math.max(high - low, 1e-12);
  return {
    ...box, width, height, domain: [left, right], ticks: niceTicks(low, high, 4),
    x: (v) => box.left + 8 + (v - left) / (right - left) * (box.right - box.left - 16),
    y: (v) => box.bottom - (v - low) / span * (box.bottom - box.top),
  };
}

function drawAxes(root, spec, s, names) {
  for (const tick of s.ticks) {
    const y = s.y(tick);
    root.append(svg("line", { x1: s.left, x2: s.right, y1: y, y2: y, class: "grid" }),
      svg("text", { x: s.left - 8, y: y + 4, "text-anchor": "end" }, showTick(tick, spec.format)));
  }
  root.append(svg("line", { x1: s.left, x2: s.right, y1: s.bottom, y2: s.bottom, class: "axis" }));
  const named = (spec.ticks || []).map(([x, label]) => [x, label]);
  const round = niceTicks(...s.domain, Math.max(2, (s.right - s.left) / 60))
    .filter((x) => Number.isInteger(x) && !names.has(x) || (spec.ticks && x > 0 && Number.isInteger(x)))
    .map((x) => [x, show(x)]);
  const taken = [];
  for (const [value, label] of named.concat(spec.ticks ? round.filter(([x]) => x > 0) : round)) {
    const half = label.length * 3.4 + 5;
    const x = s.x(value), place = Math.max(half - 4, Math.min(s.width - half + 4, x));
    if (taken.some(([a, b]) => place - half < b && place + half > a)) continue;
    taken.push([place - half, place + half]);
    root.append(svg("line", { x1: x, x2: x, y1: s.bottom, y2: s.bottom + 4, class: "axis" }),
      svg("text", { x: place, y: s.bottom + 17, "text-anchor": "middle" }, label));
  }
  root.append(svg("text", { x: s.right, y: s.height - 4, "text-anchor": "end", class: "unit" }, spec.x));
}

function drawLine(line, s) {
  const group = svg("g", { class: style(line.number) });
  const band = line.points.filter((p) => typeof p.low === "number" && Number.isFinite(p.y));
  if (band.length > 1) {
    const edge = band.map((p) => `${s.x(p.x)},${s.y(p.high)}`)
      .concat(band.slice().reverse().map((p) => `${s.x(p.x)},${s.y(p.low)}`));
    group.append(svg("polygon", { points: edge.join(" "), class: "band" }));
  }
  for (const p of band) {
    group.append(svg("line", { x1: s.x(p.x), x2: s.x(p.x), y1: s.y(p.low), y2: s.y(p.high), class: "whisker" }));
  }
  let path = "", pen = false;
  line.points.forEach((p, i) => {
    const finite = Number.isFinite(p.y);
    if (finite) path += `${pen ? "L" : "M"}${s.x(p.x).toFixed(1)},${s.y(p.y).toFixed(1)}`;
    const alone = finite && !pen && !Number.isFinite((line.points[i + 1] || {}).y);
    if (finite && (alone || line.points.length <= 24)) {
      group.append(mark(markOf(line.number), s.x(p.x), s.y(p.y), 3, { class: "mark" }));
    }
    if (!finite) {
      group.append(svg("text", { x: s.x(p.x), y: s.top + 8, "text-anchor": "middle", class: "odd" }, "×"));
    }
    pen = finite;
  });
  group.prepend(svg("path", { d: path, class: "line" }));
  return group;
}
