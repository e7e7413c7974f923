// The header, the pipeline table and the settings.

function drawSummary(data, host) {
  const { headline } = data;
  host.append(
    el("h1", {}, data.title),
    el("p", { class: "facts" }, facts(data).map((word) => el("span", {}, word))),
  );
  if (headline) host.append(drawHeadline(headline));
  host.append(drawTiles(data));
  if (data.notices.length) {
    host.append(el("ul", { class: "notices" }, data.notices.map((text) => el("li", {}, text))));
  }
}

function drawHeadline(headline) {
  const main = headline.rates[0];
  const heldOut = headline.kind === "held-out";
  const write = heldOut || main.name === "accuracy" ? formatShare : formatNumber;
  const title = heldOut
    ? `Held-out ${main.name}`
    : `Training ${main.name === "accuracy" ? "accuracy" : "reward"}`;
  const box = el("div", { class: "headline" });
  box.append(
    el("div", {},
      el("h2", {}, title),
      el("p", { class: "big" },
        el("span", { class: "from" }, write(main.before.value)),
        el("span", { class: "arrow" }, "→"),
        el("span", { class: "to" }, write(main.after.value))),
      el("p", {}, verdict(main, write, heldOut)),
      el("p", { class: "aside" }, conditions(headline))),
  );
  const drawn = headline.rates.filter((rate) => known(rate.before.low) && known(rate.after.low));
  if (drawn.length) box.append(intervalPlot(drawn, headline.steps));
  return box;
}

function verdict(rate, write, heldOut) {
  const { value, low, high } = rate.change;
  const points = (v) => (write === formatShare ? formatSigned(Number((100 * v).toFixed(1))) : formatSigned(v));
  const unit = write === formatShare ? " points" : "";
  if (!known(low)) return `${points(value)}${unit}${heldOut ? "; no interval was logged" : ""}`;
  const sure = low > 0 ? "better beyond chance" : high < 0 ? "worse beyond chance" : "could be chance";
  const tone = low > 0 ? "good" : high < 0 ? "bad" : "unsure";
  return [
    el("b", {}, `${points(value)}${unit}`),
    ` [${points(low)}, ${points(high)}] `,
    el("span", { class: `verdict ${tone}` }, sure),
  ];
}

function conditions(headline) {
  const [first, last] = headline.steps;
  if (headline.kind !== "held-out") {
    return `No two held-out evaluations were logged: means over the first and last ${count(headline.averaged, "step")} of training.`;
  }
  const words = [`step ${first} → step ${last}`];
  if (known(headline.prompts)) words.push(count(headline.prompts, "prompt"));
  if (known(headline.samples)) words.push(`${count(headline.samples, "sample")} each`);
  words.push("95% intervals");
  return words.join(" · ");
}

// Each rate as two dots with whiskers on a common axis.
function intervalPlot(rates, steps) {
  const shown = rates.slice(0, 5);
  const [width, row, left, right, top] = [420, 46, 74, 404, 12];
  const height = top + row * shown.length + 22;
  const ends = shown.flatMap((r) => [r.before.low, r.before.high, r.after.low, r.after.high]);
  const low = Math.max(0, Math.min(...ends) - 0.04);
  const high = Math.min(1, Math.max(...ends) + 0.04);
  const x = (v) => left + ((v - low) / (high - low || 1)) * (right - left);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "intervals", role: "img" });
  for (const tick of ticks(low, high, 5)) {
    picture.append(svg("line", { class: "grid-line", x1: x(tick), x2: x(tick), y1: top, y2: height - 20 }));
    picture.append(svg("text", { x: x(tick), y: height - 6, "text-anchor": "middle" }, `${formatNumber(100 * tick)}%`));
  }
  shown.forEach((rate, i) => {
    const y = top + row * i + 12;
    picture.append(svg("text", { class: "label", x: left - 10, y: y + 15, "text-anchor": "end" }, rate.name));
    [["before", rate.before, y], ["after", rate.after, y + 20]].forEach(([side, e, at], j) => {
      const mark = svg("g", { class: side });
      mark.append(svg("title", {}, `step ${steps[j]}: ${formatShare(e.value)} [${formatShare(e.low)}, ${formatShare(e.high)}]`));
      mark.append(svg("line", { x1: x(e.low), x2: x(e.high), y1: at, y2: at }));
      mark.append(svg("circle", { cx: x(e.value), cy: at, r: 5.5 }));
      picture.append(mark);
    });
  });
  return picture;
}

function drawTiles(data) {
  const { columns } = data.curves;
  const tiles = [
    ["reward", "reward/mean", formatNumber],
    ["training accuracy", "accuracy", formatShare],
    ["entropy", "entropy", formatNumber],
    ["mean length", "length/mean", formatNumber],
    ["groups with signal", "groups/signal", formatShare],
  ].filter(([, name]) => columns[name]).map(([label, name, write]) => {
    const line = smooth(columns[name], Math.max(1, shared.steps.length / 20));
    const first = line.find(known);
    return el("div", { class: "tile" },
      el("span", { class: "label" }, label),
      el("div", {}, el("span", { class: "value" }, write(lastKnown(line))),
        el("span", { class: "label" }, `from ${write(first)}`)),
      svg("svg", { viewBox: "0 0 80 24", class: "spark", preserveAspectRatio: "none", "aria-hidden": true },
        svg("path", { d: sparkPath(line, 80, 24) })));
  });
  return el("div", { class: "tiles" }, tiles);
}

// What the run was and what it took, in one line.
function facts(data) {
  const { about, totals } = data;
  const { counted } = data.curves;
  const partial = known(about.steps) && about.steps !== counted;
  const words = [about.model, about.task, known(about.seed) ? `seed ${about.seed}` : null];
  words.push(partial ? `${counted.toLocaleString("en")} of ${count(about.steps, "step")}` : count(counted, "step"));
  if (totals["tokens/sampled"]) words.push(`${compact(totals["tokens/sampled"])} tokens sampled`);
  if (totals["seconds/step"]) words.push(`${formatSeconds(totals["seconds/step"])} of training`);
  if (about.started) words.push(String(about.started).replace("T", " ").slice(0, 16));
  return words.filter(Boolean);
}

function compact(value) {
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) return formatNumber(value / (letter === "k" ? 1e3 : size)) + letter;
  }
  return formatNumber(value);
}

function drawPipeline(data, host) {
  const rows = Array.isArray(data.about.pipeline) ? data.about.pipeline : [];
  const batch = Object.entries(data.about.batch || {});
  if (!rows.length && !batch.length) return;
  host.append(el("h2", {}, "Pipeline"));
  if (rows.length) host.append(pipelineTable(rows));
  if (batch.length) {
    host.append(el("h3", {}, "Batch arithmetic"), el("dl", { class: "quantities" },
      batch.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, show(value))))));
  }
}

function pipelineTable(rows) {
  let stage = null;
  const body = rows.map((row) => {
    const repeated = row.stage === stage;
    stage = row.stage;
    const inner = String(row.slot || "").split(".").slice(1).join(".");
    const numbers = Object.entries(row.numbers || {});
    return el("tr", { class: repeated ? "" : "first" },
      el("th", { scope: "row" }, repeated ? "" : row.stage),
      el("td", {}, el("code", { class: inner ? "" : "aside" }, row.part || "(numbers)"), inner && el("span", { class: "slot" }, inner)),
      el("td", { class: "numbers" }, numbers.map(([name, value]) =>
        el("span", {}, `${name} `, el("b", {}, show(value))))),
      el("td", {}, row.idea ? el("span", { class: "idea" }, row.idea) : el("span", { class: "aside" }, "default")),
      el("td", { class: "paper" }, row.title && el("em", {}, row.title), row.title && " ", paper(row.paper)));
  });
  const head = ["stage", "part", "numbers", "from", "paper"].map((name) => el("th", { scope: "col" }, name));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body)));
}

function paper(text) {
  if (!text) return null;
  const id = /^arxiv[:\s]*(\d{4}\.\d{4,5})/i.exec(String(text));
  if (!id) return String(text);
  return el("a", { href: `https://arxiv.org/abs/${id[1]}`, rel: "noopener noreferrer" }, String(text));
}

const shortNumber = (v) => (Math.abs(v) < 0.001 ? v.toExponential().replace("e+", "e") : String(v));

function show(value) {
  if (known(value)) return Number.isInteger(value) ? value.toLocaleString("en") : shortNumber(value);
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function drawSettings(data, host) {
  const { pipeline, batch, arguments: given, ...rest } = data.about;
  const rows = [...Object.entries(rest), ...Object.entries(given || {})];
  if (!rows.length) return;
  host.append(el("details", {}, el("summary", {}, `All settings (${rows.length})`),
    el("dl", { class: "quantities" }, rows.map(([name, value]) =>
      el("div", {}, el("dt", {}, name), el("dd", {}, show(value)))))));
}
