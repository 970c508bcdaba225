// The timeline: a row for each role, a rectangle for each state; below it what to change, step by step.

const STATE_CLASS = {
  update: "s0", busy: "s0", model: "s0", tool: "s1", logprobs: "s2", score: "s2", start: "s3",
  publish: "s4", loading: "s4", switch: "s4", save: "s5", stop: "s5",
};

function timeline(spec) {
  const thick = [18, 18], height = spec.rows.reduce((sum, _, i) => sum + (thick[i] || 7) + (i < 2 ? 6 : 1), 22);
  const plot = el("div", { class: "plot", role: "img", "aria-label": "Timeline of trainer, engine and rollouts." });
  plot.style.height = height + "px";
  let drawn = 0;

  function draw() {
    const width = Math.max(320, plot.clientWidth), left = 64;
    drawn = width;
    const at = (seconds) => left + seconds / Math.max(1e-9, spec.seconds) * (width - left - 8);
    const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const [step, end] of spec.steps) {
      root.append(svg("line", { x1: at(end), x2: at(end), y1: 0, y2: height - 18, class: "grid" }));
      root.append(svg("text", { x: at(end) - 3, y: height - 5, "text-anchor": "end" }, spec.steps.length > 8 ? step : "step " + step));
    }
    let y = 2;
    spec.rows.forEach((row, i) => {
      const tall = thick[i] || 7;
      if (row.name) root.append(svg("text", { x: left - 8, y: y + Math.min(tall, 14), "text-anchor": "end", class: "name" }, row.name));
      for (const [state, began, ended] of row.spans || []) {
        root.append(svg("rect", { x: at(began), y, width: Math.max(0.5, at(ended) - at(began)), height: tall, class: "state " + (STATE_CLASS[state] || "idle") },
          svg("title", {}, `${state.replace("_", " ")}, ${show(ended - began, "seconds")}, from ${show(began, "seconds")}`)));
      }
      y += tall + (i < 2 ? 6 : 1);
    });
    plot.replaceChildren(root);
  }

  new ResizeObserver(() => {
    if (Math.abs(drawn - Math.max(320, plot.clientWidth)) > 1) draw();
  }).observe(plot);
  const key = [["s0", "sampling, updating"], ["s1", "tools"], ["s2", "log-probabilities, scoring"], ["s3", "starting"],
    ["s4", "publishing weights, switching"], ["s5", "saving, stopping"], ["idle", "waiting"]];
  const legend = el("ul", { class: "legend" }, key.map(([kind, name]) => el("li", {},
    svg("svg", { width: 14, height: 12, "aria-hidden": "true" }, svg("rect", { x: 1, y: 2, width: 12, height: 8, class: "state " + kind })), name)));
  const seconds = (row) => (row.spans || []).reduce((sums, [state, a, b]) => sums.set(state, (sums.get(state) || 0) + b - a), new Map());
  const shares = spec.rows.slice(0, 2).flatMap((row) => [...seconds(row)].map(([state, s]) => [row.name, state.replace("_", " "), show(s, "seconds"), show(s / spec.seconds, "share")]));
  return el("section", { class: "charts", id: "timeline" }, el("h3", {}, "Who waited for whom"),
    el("figure", { class: "chart wide" },
      el("figcaption", {}, el("h4", {}, "Timeline", el("small", {}, `the newest ${spec.steps.length} steps, ${show(spec.seconds, "seconds")}`)), legend),
      plot, tableOf("Seconds in each state", ["role", "state", "seconds", "share"], () => shares)),
    el("p", { class: "note" }, spec.advice[spec.advice.length - 1][1]),
    tableOf("What each step said", ["step", "who waited for whom, and what to change"], () => spec.advice, "Every step"));
}
