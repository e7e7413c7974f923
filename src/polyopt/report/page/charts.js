// Line and stacked-area charts that share one step axis, one smoothing span and one cursor.

const shared = { span: 1, chosen: null, steps: [], domain: [0, 1], charts: [], cursor: null };

const colours = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const colourOf = (i) => `var(${colours[i % colours.length]})`;

// spec: {title, about, series: [{name, values, colour, silent}], bands: [{name, low, high, colour}],
//        points: [{name, colour, at: [...]}], write: formatNumber, floor, ceiling, log: "auto", stacked}
// A silent series has a reading in the legend and no line.
function chart(spec) {
  const value = el("span", { class: "now" });
  const legend = el("ul", { class: "legend" });
  const frame = el("div", { class: "plot" });
  const figure = el(
    "figure",
    { class: "chart" },
    el("figcaption", { title: spec.about }, el("h4", {}, spec.title), value),
    legend,
    frame,
  );
  const state = { spec, value, legend, frame, width: 0 };
  shared.charts.push(state);
  new ResizeObserver(() => {
    const width = Math.floor(frame.clientWidth);
    if (width > 0 && width !== state.width) {
      state.width = width;
      requestAnimationFrame(() => drawChart(state));
    }
  }).observe(frame);
  return figure;
}

function redrawAll() {
  for (const state of shared.charts) if (state.width > 0) drawChart(state);
}

function moveCursor(index) {
  if (index === shared.cursor) return;
  shared.cursor = index;
  requestAnimationFrame(() => shared.charts.forEach((state) => state.width > 0 && showCursor(state)));
}

function drawChart(state) {
  const { spec, width, frame } = state;
  const height = spec.height || 168;
  const box = { left: 46, right: width - 8, top: 8, bottom: height - 20 };
  const span = spec.exact ? 1 : shared.span;
  state.lines = spec.series.map((series) => smooth(series.values, span));
  const stacked = spec.stacked ? stack(state.lines) : null;
  const drawn = spec.series.filter((series) => !series.silent);
  const edges = (spec.bands || []).flatMap((b) => [smooth(b.low, span), smooth(b.high, span)]);
  const plain = spec.bands ? [] : drawn.map((series) => series.values);
  const lines = state.lines.filter((_, i) => !spec.series[i].silent);
  const scale = valueScale(spec, stacked || [...lines, ...plain, ...edges], box);
  const x = stepScale(box);
  const xs = shared.steps.map(x);
  state.xs = xs;
  const picture = svg("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title,
  });
  picture.append(axes(box, scale, x, spec.write || formatNumber));
  if (stacked) stacked.forEach((top, i) => picture.append(band(xs, top, stacked[i - 1], scale.y, spec.series[i].colour)));
  (spec.bands || []).forEach((b, i) => picture.append(spread(xs, edges[2 * i], edges[2 * i + 1], scale.y, b)));
  if (!stacked) drawn.forEach((series, i) => picture.append(curve(series, lines[i], spec.bands ? 1 : span, xs, scale.y)));
  for (const set of spec.points || []) picture.append(errorBars(set, x, scale.y, spec.write));
  state.line = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  picture.append(state.line);
  picture.addEventListener("pointermove", (event) => moveCursor(nearest(xs, event, picture)));
  picture.addEventListener("pointerdown", (event) => moveCursor(nearest(xs, event, picture)));
  picture.addEventListener("pointerleave", () => moveCursor(null));
  frame.replaceChildren(picture);
  drawLegend(state, scale);
  showCursor(state);
}

function nearest(xs, event, picture) {
  if (!xs.length) return null;
  const at = event.clientX - picture.getBoundingClientRect().left;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < at) low = middle;
    else high = middle;
  }
  return Math.abs(xs[low] - at) <= Math.abs(xs[high] - at) ? low : high;
}

function stepScale(box) {
  const [first, last] = shared.domain;
  const span = last - first || 1;
  return (step) => box.left + 6 + ((step - first) / span) * (box.right - box.left - 12);
}

function valueScale(spec, rows, box) {
  const values = rows.flat().filter(known);
  for (const set of spec.points || []) {
    for (const p of set.at) values.push(...[p.value, p.low, p.high].filter(known));
  }
  let low = values.reduce((a, b) => Math.min(a, b), Infinity);
  let high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (low > high) [low, high] = [0, 1];
  const log = spec.log === "auto" && low > 0 && high / low > 40;
  if (log) {
    const [a, b] = [Math.log(low) - 0.15, Math.log(high) + 0.15];
    const y = (v) => box.bottom - ((Math.log(v) - a) / (b - a)) * (box.bottom - box.top);
    return { y, ticks: logTicks(low, high), log };
  }
  if (known(spec.floor)) low = Math.min(low, spec.floor);
  if (known(spec.ceiling)) high = Math.max(high, spec.ceiling);
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  const top = high === spec.ceiling ? high : high + room;
  const base = low === spec.floor ? low : low - room;
  const y = (v) => box.bottom - ((v - base) / (top - base)) * (box.bottom - box.top);
  return { y, ticks: ticks(base, top, 4), log };
}

function axes(box, scale, x, write) {
  const group = svg("g", { class: "axes" });
  for (const tick of scale.ticks) {
    const y = scale.y(tick);
    if (y < box.top - 1 || y > box.bottom + 1) continue;
    group.append(svg("line", { x1: box.left, x2: box.right, y1: y, y2: y }));
    group.append(svg("text", { x: box.left - 6, y: y + 3.5, "text-anchor": "end" }, write(tick).replace(/\.0+%$/, "%")));
  }
  const marks = ticks(shared.domain[0], shared.domain[1], (box.right - box.left) / 90);
  marks.filter(Number.isInteger).forEach((step, i) => {
    const last = box.right - x(step) < 18;
    const label = i === 0 ? `step ${step.toLocaleString("en")}` : step.toLocaleString("en");
    const anchor = i === 0 ? "start" : last ? "end" : "middle";
    group.append(svg("text", { x: x(step), y: box.bottom + 15, "text-anchor": anchor }, label));
  });
  return group;
}

function curve(series, line, span, xs, y) {
  const group = svg("g", { class: "curve", style: `stroke:${series.colour}` });
  const raw = linePath(xs, series.values, y);
  if (span > 1) group.append(svg("path", { class: "raw", d: raw }));
  group.append(svg("path", { class: "smooth", d: span > 1 ? linePath(xs, line, y) : raw }));
  return group;
}

function stack(lines) {
  const below = shared.steps.map(() => 0);
  return lines.map((line) => line.map((value, i) => (below[i] += known(value) ? value : 0)));
}

function band(xs, top, below, y, colour) {
  const up = top.map((v, j) => `${j ? "L" : "M"}${xs[j].toFixed(1)} ${y(v).toFixed(1)}`);
  const down = top.map((_, j) => `L${xs[j].toFixed(1)} ${y(below ? below[j] : 0).toFixed(1)}`);
  const path = `${up.join("")}${down.reverse().join("")}Z`;
  return svg("path", { d: path, class: "band", style: `fill:${colour}` });
}

function errorBars(set, x, y, write) {
  const group = svg("g", { class: "points", style: `stroke:${set.colour};fill:${set.colour}` });
  for (const p of set.at) {
    const at = x(p.step);
    const interval = known(p.low) && known(p.high);
    const words = interval ? ` [${write(p.low)}, ${write(p.high)}]` : "";
    const mark = svg("g", {}, svg("title", {}, `${set.name}, step ${p.step}: ${write(p.value)}${words}`));
    if (interval) {
      const path = `M${at} ${y(p.low)}V${y(p.high)}M${at - 3.5} ${y(p.low)}h7M${at - 3.5} ${y(p.high)}h7`;
      mark.append(svg("path", { d: path }));
    }
    mark.append(svg("circle", { cx: at, cy: y(p.value), r: 4 }));
    group.append(mark);
  }
  return group;
}

// What the legend names, and how each is read: at a step, or at the end of the (smoothed) curve.
function legendEntries({ spec, lines }) {
  const write = spec.write || formatNumber;
  const value = (values, line, at) => (at === null ? lastKnown(line) : values[at]);
  return [
    ...spec.series.map((s, i) => ({ ...s, mark: s.silent ? "none" : "", read: (at) => write(value(s.values, lines[i], at)) })),
    ...(spec.bands || []).map((b) => ({
      ...b, mark: "area", read: (at) => `${write(value(b.low, b.low, at))} to ${write(value(b.high, b.high, at))}`,
    })),
    ...(spec.points || []).map((set) => ({ ...set, mark: "dot", read: () => write((set.at.at(-1) || {}).value) })),
  ];
}

function drawLegend(state, scale) {
  const { legend } = state;
  const entries = legendEntries(state);
  const alone = entries.length < 2;
  state.readings = [];
  legend.replaceChildren();
  legend.hidden = alone && !scale.log;
  for (const { name, colour, mark, strength, read } of alone ? [] : entries) {
    const reading = el("b");
    const swatch = el("i", { class: mark, style: `background:${colour};opacity:${strength ? strength + 0.2 : 1}` });
    legend.append(el("li", {}, mark === "none" ? null : swatch, name, " ", reading));
    state.readings.push({ reading, read });
  }
  if (scale.log) legend.append(el("li", { class: "aside" }, "log scale"));
}

function showCursor(state) {
  const { spec, line, xs } = state;
  const at = shared.cursor !== null && shared.cursor < xs.length ? shared.cursor : null;
  line.setAttribute("visibility", at === null ? "hidden" : "visible");
  if (at !== null) {
    line.setAttribute("x1", xs[at]);
    line.setAttribute("x2", xs[at]);
  }
  const single = spec.series.length === 1 && !spec.bands;
  const step = at === null ? "" : `step ${shared.steps[at].toLocaleString("en")}`;
  state.value.replaceChildren(
    el("span", { class: "at" }, step),
    single ? ` ${legendEntries(state)[0].read(at)}` : "",
  );
  (state.readings || []).forEach(({ reading, read }, i) => {
    reading.textContent = single && i === 0 ? "" : read(at);
  });
}

function sparkPath(values, width, height) {
  const shown = values.filter(known);
  if (shown.length < 2) return "";
  const low = Math.min(...shown);
  const span = Math.max(...shown) - low || 1;
  const xs = values.map((_, i) => (i / (values.length - 1)) * width);
  return linePath(xs, values, (v) => height - 2 - ((v - low) / span) * (height - 4));
}
