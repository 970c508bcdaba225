// One rollout as a conversation: a header with what came of it, then the messages of every context.

const OUTCOMES = {
  passed: ["✓", "passed"], failed: ["✗", "failed"], rejected: ["⊘", "rejected"], fault: ["⚠", "fault"],
};
const WHO = { system: "System", user: "User", assistant: "Agent", tool: "Tool" };

function outcomeMark(t) {
  const [sign, word] = OUTCOMES[t.outcome];
  return el("span", { class: "outcome " + t.outcome }, sign + " " + word);
}

function list(items) {
  return el("ul", { class: "meta" }, items.filter(Boolean).map((item) => el("li", {}, item)));
}

function conversation(t, roundName) {
  const facts = [
    ["Stage", t.stage + ", " + roundName(t)], ["Split", t.split], ["Group", t.group], ["Seed", t.seed],
    ["Policy version", t.version], ["Ended by", t.ended_by], ["Seconds", show(t.seconds)],
    ["Expert's chunks replayed", t.replayed || ""], ["Changed echoes", t.changed_echoes || ""],
    ...(t.timings || []).map(([name, s]) => ["… " + name, show(s) + " s"]),
  ].filter(([, value]) => value !== undefined && value !== "");
  const why = t.fault ? el("p", { class: "notice error" }, el("strong", {}, t.fault + " fault: "), t.fault_text)
    : t.rejected ? el("p", { class: "notice error" }, el("strong", {}, "Kept out of training: "), t.rejected) : null;
  const reward = t.reward === undefined ? null : el("section", { class: "score" },
    el("p", {}, el("strong", {}, "Reward " + show(t.reward)), t.reward_seconds ? ` in ${show(t.reward_seconds, "seconds")}` : ""),
    t.detail && el("pre", {}, t.detail));
  return [
    el("header", {},
      el("h3", {}, t.task), el("p", { class: "sub" }, outcomeMark(t),
        el("span", {}, `${t.chunks} chunk${t.chunks === 1 ? "" : "s"}, ${show(t.tokens)} tokens`),
        (t.tags || []).map((tag) => el("span", { class: "tag" }, tag)), el("code", {}, t.id)),
      why,
      el("details", { class: "numbers" }, el("summary", {}, "About this rollout"),
        el("dl", {}, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))))),
    t.lines.length ? t.lines.map((line, i) => context(t, line, i)) : el("p", { class: "notice" }, "The model was never called."),
    reward,
  ];
}

function context(t, line, index) {
  const head = t.lines.length > 1 && el("h5", {}, `Context ${index + 1} of ${t.lines.length}`);
  const before = line.shared && el("p", { class: "note" },
    `Begins with the first ${line.shared} message${line.shared === 1 ? "" : "s"} of context ${line.shared_with + 1}.`);
  const offered = line.tools && `Tools offered: ${line.tools.join(", ")}`;
  return el("section", { class: "context", "aria-label": `Context ${index + 1}` }, head,
    list([`${show(line.tokens)} tokens of context`, offered]), before, el("ol", { class: "turns" }, line.turns.map(turn)));
}

function turn(t) {
  const exit = t.exit_code === undefined ? null
    : el("span", { class: t.exit_code ? "exit bad" : "exit" }, (t.exit_code ? "✗ " : "") + "exit code " + t.exit_code);
  const result = t.role === "tool" && list([
    exit, t.seconds !== undefined && show(t.seconds, "seconds"), t.unseen && "not shown to the model"]);
  return el("li", { class: "turn " + t.role },
    el("div", { class: "who" }, WHO[t.role] || t.role, t.tool && el("code", {}, t.tool)),
    el("div", { class: "said" },
      t.thought && el("details", { class: "thought" }, el("summary", {}, `Thought (${show(t.thought.length)} characters)`),
        el("pre", { class: "text" }, t.thought)),
      t.text ? el("pre", { class: "text" }, t.text) : !t.calls && el("p", { class: "note" }, "(nothing)"),
      (t.calls || []).map(call), t.chunk && chunk(t.chunk), result));
}

function call(c) {
  const body = c.raw !== undefined
    ? [el("p", { class: "bad" }, "✗ The arguments are not a JSON object:"), el("pre", {}, c.raw)]
    : (c.arguments || []).map(([name, value]) => el("div", { class: "argument" },
      el("span", { class: "key" }, name), el("pre", {}, value)));
  return el("div", { class: "call" }, el("div", { class: "name" }, "calls ", el("code", {}, c.name)), body);
}

function chunk(c) {
  const versions = c.versions && (c.versions.length > 1
    ? `policy versions ${c.versions[0]} – ${c.versions[1]}` : `policy version ${c.versions[0]}`);
  const finish = { length: "cut at the token limit", abort: "aborted" }[c.finish];
  return el("div", { class: "chunk" },
    list([`chunk ${c.index}`, `${show(c.tokens)} tokens`, !c.sampled && "not sampled by the policy", c.side && "side call: not trained on",
      c.mean !== undefined && `mean logprob ${show(c.mean)}`, versions, `finish: ${c.finish}`,
      finish && el("span", { class: "bad" }, "✗ " + finish)]),
    c.error && el("p", { class: "bad" }, el("strong", {}, "✗ " + c.error.replace("_", " ")),
      c.error_text ? ": " + c.error_text : ""),
    c.bars && spark(c));
}

// Surprise of each token, -logprob: the higher and darker the bar, the less likely the token was.
function spark(c) {
  const DEEP = 6, height = 34, wide = Math.max(2, Math.min(8, Math.floor(560 / c.bars.length) - 1));
  const width = c.bars.length * (wide + 1);
  const numbers = c.bars.map((v) => (typeof v === "number" ? v : -Infinity));
  const least = numbers.indexOf(Math.min(...numbers));
  const bars = numbers.map((v, i) => {
    const depth = Math.min(1, -v / DEEP);
    const h = Math.max(1.5, depth * height);
    const first = i * c.per + 1, last = Math.min(c.tokens, first + c.per - 1);
    return svg("rect", { x: i * (wide + 1), y: height - h, width: wide, height: h, class: "d" + Math.min(4, Math.floor(depth * 5)) },
      svg("title", {}, `${c.per > 1 ? `tokens ${first} – ${last}, mean` : `token ${first}`} logprob ${show(c.bars[i])}`));
  });
  const label = `Surprise of ${c.tokens} tokens; least likely: ${c.per > 1 ? "around " : ""}token ${least * c.per + 1}, logprob ${show(c.bars[least])}`;
  return el("figure", { class: "spark" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "none", role: "img", "aria-label": label }, bars),
    el("figcaption", { class: "note" }, `${label} (bars reach the top at −${DEEP}).`));
}
