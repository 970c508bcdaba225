"use strict";
// Asks the service every two seconds while the page is visible, and writes what it says. Texts go through text nodes
// only; nothing here parses HTML. What goes wrong is written to the root element, where tests look.

window.addEventListener("error", (event) => { document.documentElement.dataset.error = event.message; });
window.addEventListener("securitypolicyviolation", (event) => {
  document.documentElement.dataset.error = "refused by the content security policy: " + event.violatedDirective;
});

const EVERY_MS = 2000, PATIENCE_MS = 15000, KEY = "ale-rock-token";
const ALE = "apis/ale/v1/", ROCK = "apis/envs/sandbox/v1/";
const $ = (id) => document.getElementById(id);
const pages = { page: 1, workers_page: 1 };
let timer = 0, round = 0, open = null, logSeen = null;

// --- requests

class TokenRefused extends Error {}

async function ask(path, query, as) {
  const token = sessionStorage.getItem(KEY);
  const headers = token ? { Authorization: "Bearer " + token } : {};
  const text = query ? "?" + new URLSearchParams(query) : "";
  let answer;
  try {
    answer = await fetch(path + text, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  } catch {
    throw new Error("The service does not answer; it is asked again every two seconds.");
  }
  if (answer.ok) return as === "text" ? answer.text() : answer.json();
  const said = await answer.json().catch(() => ({}));
  const sentence = typeof said.detail === "string" ? said.detail : "The service answered with the status " + answer.status + ".";
  if (answer.status === 401 || (answer.status === 403 && token)) throw new TokenRefused(sentence);
  throw new Error(sentence);
}

async function rock(path, query) {
  const envelope = await ask(ROCK + path, query);
  if (envelope.status !== "Success") throw new Error(envelope.message || "The request failed.");
  return envelope;
}

// --- elements

function el(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

// Writes only what has changed, so that a selection and the focus stay where they are.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A cell is a text, or { text, is, open, share }: a class, the sandbox that it opens, the share of a bar.
function setCell(cell, value) {
  const { text, is = "", open = null, share = null } = typeof value === "object" ? value : { text: value };
  if (cell.className !== is) cell.className = is;
  if (open !== null) {
    let button = cell.querySelector("button");
    if (!button) {
      button = el("button", "link");
      button.type = "button";
      button.addEventListener("click", () => show(button.value));
      cell.replaceChildren(button);
    }
    button.value = open;
    setText(button, text);
  } else if (share !== null) {
    if (!cell.querySelector(".bar")) cell.replaceChildren(el("span"), el("span", "bar", el("i")));
    setText(cell.firstChild, text);
    const fill = cell.querySelector("i");
    fill.style.width = Math.min(100, 100 * share) + "%";
    fill.className = share >= 0.9 ? "full" : "";
  } else setText(cell, text);
}

function setRows(table, rows, empty) {
  const body = table.tBodies[0];
  const shown = rows.length ? rows : [{ key: "", cells: [{ text: empty, is: "empty" }] }];
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  shown.forEach(({ key, cells }, at) => {
    let row = old.get(key);
    if (!row || row.cells.length !== cells.length) {
      row = el("tr", "", ...cells.map(() => el("td")));
      row.dataset.key = key;
      if (!rows.length) row.cells[0].colSpan = table.tHead.rows[0].cells.length;
    } else old.delete(key);
    cells.forEach((value, index) => setCell(row.cells[index], value));
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
  });
  while (body.rows.length > shown.length) body.deleteRow(-1);
}

function setFigures(list, figures) {
  const old = list.children;
  figures.forEach(([name, text], at) => {
    const pair = old[at] || list.appendChild(el("div", "", el("dt"), el("dd")));
    setText(pair.children[0], name);
    setText(pair.children[1], text);
  });
  while (old.length > figures.length) old[figures.length].remove();
}

function setPager(pager, part, name, what) {
  if (!pager.children.length) {
    const step = (label, by) => {
      const button = el("button", "", label);
      button.type = "button";
      button.addEventListener("click", () => { pages[name] = Math.max(1, pages[name] + by); poll(); });
      return button;
    };
    pager.append(step("Back", -1), el("span"), step("Next", 1));
  }
  const [back, where, next] = pager.children;
  pages[name] = part.page;
  setText(where, whole(part.total) + " " + what + (part.pages > 1 ? ", page " + part.page + " of " + whole(part.pages) : ""));
  back.hidden = next.hidden = part.pages < 2;
  back.disabled = part.page <= 1;
  next.disabled = part.page >= part.pages;
}

// --- numbers for people

const number = (text) => ({ text, is: "number" });
const whole = (value) => value.toLocaleString("en");
const short = (value) => String(+value.toFixed(value < 10 ? 2 : 1));
const known = (value, as) => (value === null || value === undefined ? "–" : as(value));
const size = (bytes) => {
  const step = Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(1, bytes)) / 10)));
  return short(bytes / 1024 ** step) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][step];
};
const span = (seconds) => {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
};
const clock = (date) => date.toISOString().slice(0, 19).replace("T", " "); // UTC, as in the logs
const share = (part, all) => (all ? part / all : 0);

// --- the parts of the page

function draw(data) {
  const { counts, capacity, queue, workers, sandboxes } = data;
  setText($("database"), data.database === "ok" ? "database ok" : data.database);
  setText($("who"), "role " + data.role + (data.user === null ? "" : ", sandboxes of " + data.user));
  const promised = (kind, as) => as(capacity[kind].promised) + " of " + as(capacity[kind].limit);
  setFigures($("figures"), [
    ...(counts.running === undefined ? [["Live sandboxes", whole(counts.live)]]
      : [["Running", whole(counts.running)], ["Pending", whole(counts.pending)]]),
    ["In the queue", whole(queue.waiting)],
    ["Workers", whole(workers.total)],
    ["CPUs promised", promised("cpus", short)],
    ["Memory promised", promised("memory_bytes", size)],
  ]);
  setRows($("sandbox-table"), sandboxes.items.map((box) => row(box, data.at)), "No sandbox is like this.");
  setPager($("sandbox-pager"), sandboxes, "page", sandboxes.total === 1 ? "sandbox" : "sandboxes");
  setText($("queue-note"), queue.waiting ? whole(queue.waiting) + " wait for room on a worker; at most " + whole(queue.limit) + " may."
    : "Nobody waits.");
  $("queue-table").hidden = !queue.lines.length;
  setRows($("queue-table"), queue.lines.map((line) => ({
    key: line.priority + " " + line.namespace,
    cells: [number(String(line.priority)), line.namespace || "–", number(whole(line.waiting)), number(span(data.at - line.since))],
  })), "");
  setRows($("worker-table"), workers.items.map(workerRow), "No worker has registered; start one with `ale rock worker`.");
  setPager($("worker-pager"), workers, "workers_page", workers.total === 1 ? "worker" : "workers");
  setText($("image-note"), data.images.total > data.images.items.length
    ? "The " + data.images.items.length + " that most workers have, of " + whole(data.images.total) + "." : "");
  setRows($("image-table"), data.images.items.map((each) => ({
    key: each.image, cells: [each.image, number(whole(each.workers))],
  })), "No worker has named an image.");
  setRows($("event-table"), data.events.map((each, at) => ({
    key: String(at),
    cells: [{ text: clock(new Date(1000 * each.at)), is: "time" }, each.event,
      each.sandbox === null ? "–" : { text: each.sandbox, open: each.sandbox }, each.worker || "–", each.reason || ""],
  })), "Nothing has happened since the service was started.");
}

function row(box, now) {
  const labels = Object.entries(box.labels).map(([key, value]) => key + "=" + value).join(", ");
  const state = box.state === "running" && !box.alive ? "unconfirmed" : box.state;
  const age = box.stopped === null ? now - box.created : now - box.stopped;
  return {
    key: box.id,
    cells: [
      { text: box.id, open: box.id }, { text: state, is: "state " + state }, box.user || "–", box.namespace || "–",
      box.worker || "–", box.image || "–", labels || "–", number(short(box.cpus)), number(size(box.memory_bytes)),
      number(whole(box.requests)), number(span(age)),
    ],
  };
}

function workerRow(worker) {
  const { cpus, memory_bytes: memory, disk_bytes: disk } = worker;
  const images = worker.images.slice(0, 3).join(", ") + (worker.images.length > 3 ? " and " + (worker.images.length - 3) + " more" : "");
  return {
    key: worker.name,
    cells: [
      worker.name, worker.provider, number(whole(worker.sandboxes)), number(whole(worker.starting)), number(whole(worker.warm)),
      { text: short(cpus.promised) + " of " + short(cpus.limit), share: share(cpus.promised, cpus.limit) },
      { text: size(memory.promised) + " of " + size(memory.limit), share: share(memory.promised, memory.limit) },
      { text: size(memory.used) + " of " + size(memory.offered), share: share(memory.used, memory.offered) },
      { text: known(disk.free, size) + (disk.is_full ? ": full" : ""), is: "number" }, number(short(worker.cpu_load)), { text: images || "–", is: "wide" }, number(worker.silent_s < 1 ? "now" : span(worker.silent_s) + " ago"),
    ],
  };
}

// --- one sandbox

function show(id) {
  open = id;
  logSeen = null;
  setText($("box-id"), id);
  $("box-problem").hidden = true;
  setFigures($("box-figures"), []);
  setRows($("box-history"), [], "…");
  setText($("box-log"), "…");
  if (!$("box").open) $("box").showModal();
  history.replaceState(null, "", "#sandbox=" + encodeURIComponent(id));
  drawBox(id);
}

async function drawBox(id) {
  try {
    const [{ result: status }, { result: use, message }, text] = await Promise.all([
      rock("get_status", { sandbox_id: id, include_all_states: "true" }),
      rock("get_sandbox_statistics", { sandbox_id: id }),
      ask(ROCK + "sandboxes/" + encodeURIComponent(id) + "/logs", null, "text"),
    ]);
    if (open !== id) return;
    const now = use.now || {};
    setFigures($("box-figures"), [
      ["State", status.state], ["User", status.user_id || "–"], ["Namespace", status.namespace || "–"],
      ["Worker", use.worker || "–"], ["Image", status.image || "–"],
      ["Waited", known(use.waited_s, (s) => short(s) + " s")], ["Lived", span(use.lived_s)], ["Idle", span(use.idle_s)],
      ["Requests", whole(use.requests)],
      ["Memory", known(now.memory_bytes, size) + " of " + size(use.memory_bytes)],
      ["Busy cores", known(now.cpu_cores, short) + " of " + short(use.cpus)],
      ["CPU time", known(now.cpu_s, (s) => short(s) + " s")], ["Processes", known(now.pids, whole)],
      ["Disk", known(now.disk_bytes, size) + (use.disk_bytes ? " of " + size(use.disk_bytes) : "")],
      ["Network in", known(now.network_in_bytes, size)], ["Network out", known(now.network_out_bytes, size)],
    ]);
    setRows($("box-history"), status.state_history.map((change, at) => ({
      key: String(at),
      cells: [{ text: clock(new Date(change.timestamp)), is: "time" }, change.event, change.from_state || "–", change.to_state],
    })), "");
    tellBox([status.message, message].filter(Boolean).join(" "));
    drawLog(text);
  } catch (error) {
    if (open === id) tellBox(error.message);
  }
}

function tellBox(text) {
  setText($("box-problem"), text);
  $("box-problem").hidden = !text;
}

function drawLog(text) {
  if (text === logSeen) return;
  const pre = $("box-log");
  const atEnd = logSeen === null || pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 8;
  logSeen = text;
  pre.textContent = text || "There is no log.";
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

$("box").addEventListener("close", () => {
  open = null;
  history.replaceState(null, "", location.pathname);
});

// --- asking again and again

async function poll() {
  clearTimeout(timer);
  const mine = ++round;
  try {
    const data = await ask(ALE + "overview", { ...Object.fromEntries(new FormData($("filters"))), ...pages });
    if (mine !== round) return;
    draw(data);
    $("login").hidden = true;
    $("content").hidden = false;
    tell("live", "live", "");
    if (open !== null) await drawBox(open);
  } catch (error) {
    if (mine !== round) return;
    if (error instanceof TokenRefused) return refuse(error.message);
    tell("not reachable", "failed", error.message);
  }
  $("leave").hidden = sessionStorage.getItem(KEY) === null;
  document.documentElement.dataset.ready = "1";
  if (mine === round && !document.hidden) timer = setTimeout(poll, EVERY_MS);
}

function tell(state, is, problem) {
  setText($("state"), state);
  $("state").className = "status " + is;
  setText($("problem"), problem);
  $("problem").hidden = !problem;
}

function refuse(sentence) {
  const had = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  $("content").hidden = true;
  if ($("box").open) $("box").close();
  $("leave").hidden = true;
  setText($("database"), "");
  setText($("who"), "");
  $("login").hidden = false;
  $("token").focus();
  tell("token needed", "", had ? sentence : "");
  document.documentElement.dataset.ready = "1";
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("token").value.trim());
  $("token").value = "";
  poll();
});
$("leave").addEventListener("click", () => { sessionStorage.removeItem(KEY); location.reload(); });
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("input", () => { pages.page = 1; poll(); });
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : poll()));

setText($("host"), location.host);
const linked = /^#sandbox=(.+)$/.exec(location.hash);
if (linked) show(decodeURIComponent(linked[1]));
poll();
