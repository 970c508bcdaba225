// The timeline: a row for each role and replica of the engine, a rectangle for each state; below it what to change, step by step.

const STATE_CLASS = {
  update: "s0", busy: "s0", model: "s0", tool: "s1", logprobs: "s2", score: "s2", start: "s3",
  publish: "s4", loading: "s4", switch: "s4", save: "s5", stop: "s5", leaving: "s5",
  serving: "serving", suspect: "lost", lost: "lost", failed: "lost",
};
const ROW_SIZE = { role: [18, 6, 14], replica: [12, 4, 10], rollout: [7, 1, 7] }; // height, space, the name's base line
const KIND_SPACE = 6; // between rows of two kinds
const LETTER = 6.8; // width of a letter of a row's name

const rowLabel = (row) => [row.name, row.place].filter(Boolean).join(" · ");

// Where each row begins, and at last where they end.
function rowTops(rows) {
  const tops = [2];
  rows.forEach((row, i) => {
    const [tall, space] = ROW_SIZE[row.kind], next = rows[i + 1];
    tops.push(tops[i] + tall + (next && next.kind !== row.kind ? KIND_SPACE : space));
  });
  return tops;
}

function timeline(spec) {
  const tops = rowTops(spec.rows), height = tops[spec.rows.length] + 20;
  const replicas = spec.rows.some((row) => row.kind === "replica");
  const longest = Math.max(...spec.rows.map((row) => rowLabel(row).length));
  const plot = el("div", { class: "plot", role: "img", "aria-label": "Timeline of trainer, engine and rollouts." });
  plot.style.height = height + "px";
  let drawn = 0;

  function draw() {
    const width = Math.max(320, plot.clientWidth);
    const left = Math.round(Math.max(64, Math.min(8 + LETTER * longest, 0.3 * width)));
    drawn = width;
    const at = (seconds) => left + seconds / Math.max(1e-9, spec.seconds) * (width - left - 8);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const [step, end] of spec.steps) {
      root.append(svg("line", { x1: at(end), x2: at(end), y1: 0, y2: height - 18, class: "grid" }));
      root.append(svg("text", { x: at(end) - 3, y: height - 5, "text-anchor": "end" }, spec.steps.length > 8 ? step : "step " + step));
    }
    const fits = Math.floor((left - 8) / LETTER);
    spec.rows.forEach((row, i) => {
      const [tall, , base] = ROW_SIZE[row.kind], label = rowLabel(row), y = tops[i];
      if (label) {
        root.append(svg("text", { x: left - 8, y: y + base, "text-anchor": "end", class: row.kind !== "replica" && "name" },
          label.length > fits ? label.slice(0, fits - 1) + "…" : label, svg("title", {}, label)));
      }
      for (const [state, began, ended] of row.spans || []) {
        root.append(svg("rect", { x: at(began), y, width: Math.max(0.5, at(ended) - at(began)), height: tall, class: "state " + (STATE_CLASS[state] || "idle") },
          svg("title", {}, `${state.replace("_", " ")}, ${show(ended - began, "seconds")}, from ${show(began, "seconds")}`)));
      }
    });
    plot.replaceChildren(root);
  }

  new ResizeObserver(() => {
    if (Math.abs(drawn - Math.max(320, plot.clientWidth)) > 1) draw();
  }).observe(plot);
  const key = [["s0", "sampling, updating"], ["s1", "tools"], ["s2", "log-probabilities, scoring"], ["s3", "starting"],
    ["s4", "new weights, switching"], ["s5", "saving, stopping"], ["idle", "waiting, asleep"]];
  if (replicas) key.push(["serving", "serving"], ["lost", "checked, lost"]);
  const legend = el("ul", { class: "legend" }, key.map(([kind, name]) => el("li", {},
    svg("svg", { width: 14, height: 12, "aria-hidden": "true" }, svg("rect", { x: 1, y: 2, width: 12, height: 8, class: "state " + kind })), name)));
  const seconds = (row) => (row.spans || []).reduce((sums, [state, a, b]) => sums.set(state, (sums.get(state) || 0) + b - a), new Map());
  const shares = spec.rows.filter((row) => row.kind !== "rollout").flatMap((row) =>
    [...seconds(row)].map(([state, s]) => [rowLabel(row), state.replace("_", " "), show(s, "seconds"), show(s / spec.seconds, "share")]));
  const actors = (spec.actors || []).map((actor) => [actor.name, actor.role, actor.node, actor.devices]);
  return el("section", { class: "charts", id: "timeline" }, el("h3", {}, "Who waited for whom"),
    el("figure", { class: "chart wide" },
      el("figcaption", {}, el("h4", {}, "Timeline", el("small", {}, `the newest ${spec.steps.length} steps, ${show(spec.seconds, "seconds")}`)), legend),
      plot, tableOf("Seconds in each state", ["role", "state", "seconds", "share"], () => shares),
      actors.length > 0 && tableOf("Nodes and devices", ["actor", "role", "node", "devices"], () => actors, "Nodes and devices")),
    el("p", { class: "note" }, spec.advice[spec.advice.length - 1][1]),
    tableOf("What each step said", ["step", "who waited for whom, and what to change"], () => spec.advice, "Every step"));
}
