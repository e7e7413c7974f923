// Building elements, writing numbers, scales. Text only ever enters as text nodes.

const svgNamespace = document.getElementById("namespace").namespaceURI;

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

function el(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return build(document.createElementNS(svgNamespace, tag), attributes, children);
}

function readJson(id) {
  const element = document.getElementById(id);
  return element ? JSON.parse(element.textContent) : null;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);

// Three significant digits; thousands separated; exponents only for the very small and large.
function formatNumber(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.001) return value.toExponential(1).replace(".0e", "e").replace(/^-/, "−");
  const text = String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

function formatShare(value) {
  if (!known(value)) return "–";
  const percent = 100 * value;
  const digits = Math.abs(percent) >= 99.95 || percent === 0 ? 0 : Math.abs(percent) < 0.1 ? 2 : 1;
  return `${percent.toFixed(digits).replace("-", "−")}%`;
}

function formatSigned(value) {
  return (known(value) && value > 0 ? "+" : "") + formatNumber(value);
}

function formatSeconds(seconds) {
  if (!known(seconds)) return "–";
  if (seconds > 0 && seconds < 0.01) return "< 0.01 s";
  if (seconds < 10) return `${formatNumber(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

// Round values that cover [low, high] in about n parts.
function ticks(low, high, n) {
  const span = high - low || 1;
  const raw = span / n;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let e = Math.ceil(Math.log10(low) - 1e-9); 10 ** e <= high * 1.0001; e++) found.push(10 ** e);
  if (found.length >= 2) return found.filter((_, i) => i % Math.ceil(found.length / 4) === 0);
  return ticks(low, high, 3).filter((v) => v > 0);
}

// Debiased exponential moving average; gaps stay gaps.
function smooth(values, span) {
  const keep = 1 - 2 / (Math.max(span, 1) + 1);
  let total = 0;
  let weight = 0;
  return values.map((value) => {
    if (!known(value)) return null;
    total = keep * total + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    return total / weight;
  });
}

function lastKnown(values) {
  for (let i = values.length - 1; i >= 0; i--) if (known(values[i])) return values[i];
  return null;
}

function linePath(xs, values, y) {
  let path = "";
  let drawing = false;
  values.forEach((value, i) => {
    if (!known(value)) {
      drawing = false;
      return;
    }
    const alone = !drawing && !known(values[i + 1]);
    path += `${drawing ? "L" : "M"}${xs[i].toFixed(1)} ${y(value).toFixed(1)}`;
    if (alone) path += "h0.01";
    drawing = true;
  });
  return path;
}
