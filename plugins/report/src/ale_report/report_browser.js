// The rollouts of the page: filters and a list on one side, the chosen conversation on the other; `#t=ID` links to one.

function browser(data, home) {
  const all = data.trajectories;
  const roundName = (t) => (t.stage.split(".")[0] === "eval" && data.rounds[t.step]) || "step " + t.step;
  const haystack = new Map();
  const pick = (name, options) => {
    const box = el("select", { name, "aria-label": name }, el("option", { value: "" }, "every " + name),
      options.map(([value, label]) => el("option", { value }, label)));
    box.addEventListener("change", refresh);
    return box;
  };
  const unique = (values) => [...new Set(values)];
  const stage = pick("stage", unique(all.map((t) => t.stage)).map((s) => [s, s]));
  const step = pick("step", []);
  const family = pick("task family", unique(all.flatMap((t) => t.tags || [])).sort().map((s) => [s, s]));
  const outcome = pick("outcome", unique(all.map((t) => t.outcome)).map((s) => [s, OUTCOMES[s].join(" ")]));
  const words = el("input", { type: "search", placeholder: "search text, task or id", "aria-label": "search", oninput: refresh });
  const count = el("p", { class: "note", role: "status" });
  const rows = el("ul", { class: "rows", tabindex: "-1", "aria-label": "Rollouts" });
  const pane = el("article", { class: "pane", tabindex: "-1", "aria-label": "Conversation" });
  const tokens = el("input", { type: "checkbox" });
  tokens.addEventListener("change", () => pane.classList.toggle("tokens", tokens.checked));
  const go = (by) => el("button", { type: "button", onclick: () => move(by) }, by < 0 ? "← Previous" : "Next →");
  let found = all, current = null;

  function textOf(t) {
    if (!haystack.has(t)) {
      const said = t.lines.flatMap((l) => l.turns).map((m) =>
        [m.text, m.tool, ...(m.calls || []).flatMap((c) => [c.name, c.raw, ...(c.arguments || []).flat()])].join("\n"));
      haystack.set(t, [t.id, t.task, t.group, t.detail, t.rejected, t.fault_text, ...said].join("\n").toLowerCase());
    }
    return haystack.get(t);
  }

  function fillSteps() {
    const kept = step.value;
    const steps = stage.value ? unique(all.filter((t) => t.stage === stage.value).map((t) => t.step)).sort((a, b) => a - b) : [];
    step.replaceChildren(el("option", { value: "" }, "every step"),
      ...steps.map((s) => el("option", { value: s }, roundName({ stage: stage.value, step: s }))));
    step.disabled = !stage.value;
    if (steps.map(String).includes(kept)) step.value = kept;
  }

  function refresh() {
    if (this === stage) fillSteps();
    const query = words.value.trim().toLowerCase();
    found = all.filter((t) => (!stage.value || t.stage === stage.value)
      && (!step.value || t.step === Number(step.value)) && (!family.value || (t.tags || []).includes(family.value))
      && (!outcome.value || t.outcome === outcome.value) && (!query || textOf(t).includes(query)));
    const total = stage.value ? ` The run has ${show(data.counts[stage.value])} of stage ${stage.value}.` : "";
    count.textContent = `${show(found.length)} of ${show(all.length)} in this page.` + total;
    rows.replaceChildren(...found.map(row));
    highlight();
  }

  function row(t) {
    const [sign, word] = OUTCOMES[t.outcome];
    return el("li", {}, el("a", { href: "#t=" + encodeURIComponent(t.id), "data-id": t.id },
      el("span", { class: "outcome " + t.outcome, title: word }, sign, el("span", { class: "unseen" }, word)),
      el("span", { class: "task" }, t.task),
      el("span", { class: "where" }, t.stage + " · " + roundName(t)),
      el("span", { class: "size" }, `${show(t.chunks)} × ${show(Math.round(t.tokens / Math.max(1, t.chunks)))} tok`)));
  }

  function highlight() {
    for (const link of rows.querySelectorAll("a")) {
      if (current && link.dataset.id === current.id) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  function open(t, byHand) {
    current = t;
    pane.replaceChildren(...conversation(t, roundName).flat().filter(Boolean));
    pane.dataset.id = t.id;
    pane.scrollTop = 0;
    highlight();
    const link = rows.querySelector('[aria-current="true"]');
    if (link) {
      const box = link.getBoundingClientRect(), frame = rows.getBoundingClientRect();
      if (box.top < frame.top || box.bottom > frame.bottom) rows.scrollTop += box.top - frame.top - frame.height / 2;
    }
    if (byHand && matchMedia("(max-width: 820px)").matches) tools.scrollIntoView({ behavior: "instant" });
  }

  function move(by) {
    const next = found[found.indexOf(current) + by];
    if (next) location.hash = "t=" + encodeURIComponent(next.id);
  }

  function follow() {
    if (!location.hash.startsWith("#t=")) return false;
    let id = location.hash.slice(3);
    try { id = decodeURIComponent(id); } catch { /* a broken escape is looked up as it stands */ }
    const t = all.find((one) => one.id === id);
    if (t) open(t, true);
    else pane.replaceChildren(el("p", { class: "notice" }, "The rollout ", el("code", {}, id),
      " is not in this page, which holds only a part of a long run."));
    return true;
  }

  rows.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const item = event.target.closest("li");
    if (!by || !item) return;
    event.preventDefault();
    const next = by > 0 ? item.nextElementSibling : item.previousElementSibling;
    if (next) next.firstChild.focus();
  });
  const tools = el("div", { class: "tools" }, go(-1), go(1), el("label", {}, tokens, " token log-probabilities"));
  home.append(
    el("div", { class: "side" }, el("div", { class: "filters", role: "search" }, words, stage, step, family, outcome), count, rows),
    el("div", { class: "main" }, tools, pane));
  fillSteps();
  refresh();
  window.addEventListener("hashchange", follow);
  if (!follow()) open(all.find((t) => t.outcome === "passed" && t.chunks > 1) || all[0], false);
}
