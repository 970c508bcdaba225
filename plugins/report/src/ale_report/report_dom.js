// Elements and numbers. Text always goes through text nodes; nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function announce(text) {
  document.getElementById("announce").textContent = text;
}

// A number for people. `unit` is "share", "seconds" or "number"; text (such as "NaN") stays as it is.
function show(value, unit) {
  return typeof value === "number" && value < 0 ? "−" + digits(-value, unit) : digits(value, unit);
}

function digits(value, unit) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return value === "NaN" ? "not a number" : String(value).replace("-", "−").replace("Infinity", "∞");
  if (unit === "share") return trim((100 * value).toFixed(1)) + " %";
  if (unit === "seconds" && Math.abs(value) >= 60) {
    const whole = Math.round(value);
    return Math.floor(whole / 60) + " min " + (whole % 60) + " s";
  }
  const suffix = unit === "seconds" ? " s" : "";
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return value.toExponential(2).replace(/\.?0*e\+?/, "e") + suffix;
  if (Number.isInteger(value)) return value.toLocaleString("en") + suffix;
  return trim(value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.1 ? 3 : 4)) + suffix;
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// A number at an axis: short, and every tick in the same unit.
function showTick(value, unit) {
  return unit === "seconds" ? show(value, "number") + " s" : show(value, unit);
}

// Round places for about `count` ticks from `low` to `high`.
function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999) || 10 * power;
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step || 0);
  return ticks;
}

// A table, such as that of a chart's numbers, made when it is opened.
function tableOf(caption, heads, rows, label = "Numbers") {
  const details = el("details", { class: "numbers" }, el("summary", {}, label));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("table")) return;
    const head = el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)));
    const body = rows().map(([first, ...rest]) =>
      el("tr", {}, el("th", { scope: "row" }, first), rest.map((cell) => el("td", {}, cell))));
    details.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, body))));
  });
  return details;
}
