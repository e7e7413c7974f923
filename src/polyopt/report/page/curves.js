// Which metrics stand together in which chart, and the time per stage.

const sections = [
  ["Does it learn?", [
    { title: "Reward", names: ["reward/mean"], about: "Mean total reward of the sampled rollouts" },
    {
      title: "Accuracy", names: ["accuracy"], points: true, share: true, labels: { accuracy: "training" },
      about: "Share of right completions: training rollouts as a curve, held-out evaluations as points",
    },
    { title: "Reward by term", prefix: "reward/", without: ["reward/mean"], about: "Mean of each term" },
    {
      title: "Groups without signal", names: ["groups/signal"], share: true, floor: 0, from: (v) => 1 - v,
      about: "Share of groups whose rollouts all got the same reward: they carry no group-relative credit",
    },
  ]],
  ["What does the policy do?", [
    { title: "Entropy", names: ["entropy"], floor: 0, about: "Nats per sampled token" },
    {
      title: "Completion length", names: ["length/mean", "length/max"], floor: 0, strip: "length/",
      about: "Tokens per completion",
    },
    { title: "Truncated", names: ["truncated"], share: true, floor: 0, about: "Share cut off at the limit" },
    {
      title: "Tokens per step", names: ["tokens/sampled", "tokens/trained"], floor: 0, strip: "tokens/",
    },
  ]],
  ["How is it updated?", [
    { title: "Advantage size", prefix: "advantage/", without: ["advantage/mean"], distinct: true, floor: 0, about: "Mean of |advantage| over tokens" },
    {
      title: "Clipped tokens", prefix: "clip/", also: /^(mask\/.*|held|past|weight\/bounded)$/, share: true, floor: 0,
      about: "Share of trained tokens that a clip or a mask stopped",
    },
    {
      title: "Importance ratio", quantiles: "ratio", still: 1,
      about: "Current over old policy as the objective sees it, over the trained tokens of a step's updates",
    },
    { title: "Log-ratio", prefix: "log_ratio/", about: "Current to old policy, nats per token" },
    {
      title: "Sampler mismatch", quantiles: "sampler_gap", largest: "farthest",
      about: "Trainer's less sampler's log-probability of the fresh tokens, nats",
    },
    {
      title: "Sampler gap", names: ["sampler_gap"], log: "auto",
      about: "How far the trainer's log-probabilities lie from the sampler's: mean distance, nats per token",
    },
    { title: "KL to the reference", names: ["kl_ref"], about: "Nats per token" },
    { title: "KL to the old policy", names: ["kl_old", "fix_up/kl"], optional: true, about: "Nats per token" },
    { title: "KL to the teacher", names: ["kl_teacher"], optional: true, about: "Nats per token" },
    { title: "Gradient norm", names: ["grad_norm"], log: "auto", about: "Before clipping" },
    { title: "Loss", names: ["loss"] },
    { title: "Learning rate", names: ["lr"], floor: 0, exact: true },
  ]],
];

const named = new Set(["step", "unscored", "skipped_updates", "tokens_per_second"]);

function drawCurves(data, host) {
  const { curves, evals } = data;
  const evalSteps = evals.map((row) => row.step).filter(known);
  const all = curves.steps.concat(evalSteps);
  shared.steps = curves.steps;
  shared.domain = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  const spans = [1, 5, 10, 20, 50, 100, 200].filter((s) => s === 1 || s * 3 <= curves.counted);
  const wanted = curves.counted / 20;
  const nearest = spans.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a), 1);
  const chosen = spans.includes(shared.chosen) ? shared.chosen : nearest;
  shared.span = Math.max(1, chosen / curves.bin);
  host.append(el("div", { class: "heading" }, el("h2", {}, "Learning curves"), smoothing(spans, chosen, curves)));
  if (!curves.steps.length) {
    host.append(el("p", { class: "empty" }, "No training step has been logged."));
  }
  const absent = { missing: [], zero: [], still: [] };
  for (const [title, specs] of sections) {
    const charts = specs.map((spec) => drawMetric(spec, data, absent)).filter(Boolean);
    const grid = host.querySelector(".grid") ? "grid" : "grid large";
    if (charts.length) host.append(el("h3", {}, title), el("div", { class: grid }, charts));
  }
  drawRest(curves, host);
  if (!curves.steps.length) return;
  const words = [
    ["Exactly 1 at every step, as each batch took one optimizer step", absent.still],
    ["0 at every step", absent.zero],
    ["Not logged in this run", absent.missing],
  ].filter(([, titles]) => titles.length);
  for (const [what, titles] of words) {
    host.append(el("p", { class: "aside" }, `${what}: ${titles.map(lowered).join(", ")}.`));
  }
}

const lowered = (title) => title.toLowerCase().replace("kl", "KL");

function smoothing(spans, chosen, curves) {
  if (spans.length < 2) return null;
  const choice = el(
    "select",
    {
      onchange: (event) => {
        shared.chosen = Number(event.target.value);
        shared.span = Math.max(1, shared.chosen / curves.bin);
        redrawAll();
      },
    },
    spans.map((s) => el("option", { value: s, selected: s === chosen }, s === 1 ? "off" : `${s} steps`)),
  );
  const binned = curves.bin > 1 ? `each point is the mean of ${curves.bin} steps · ` : "";
  return el("label", { class: "aside" }, binned, "smoothing ", choice);
}

// A chart, or null with its title noted under the reason why there is none.
function drawMetric(spec, data, absent) {
  const columns = data.curves.columns;
  if (spec.quantiles) return drawDistribution(spec, columns, absent);
  const logged = (spec.names || prefixed(columns, spec)).filter((name) => columns[name]);
  logged.forEach((name) => named.add(name));
  const repeats = (name, i) => logged.slice(0, i).some((other) => same(columns[name], columns[other]));
  const names = spec.distinct ? logged.filter((name, i) => !repeats(name, i)) : logged;
  const points = spec.points ? heldOut(data.evals) : [];
  if (spec.prefix === "reward/" && names.length === 1 && same(columns[names[0]], columns["reward/mean"])) {
    return null;
  }
  if (!names.length && !points.length) {
    if (!spec.optional) absent.missing.push(spec.title);
    return null;
  }
  if (!points.length && names.every((name) => columns[name].every((value) => value === 0 || value === null))) {
    absent.zero.push(spec.title);
    return null;
  }
  const about = [spec.about, ...explained(data.curves, names)].filter(Boolean).join("\n");
  const label = (name) => (spec.labels || {})[name] || name.replace(spec.strip || spec.prefix || "", "");
  const values = (name) => (spec.from ? columns[name].map((v) => (known(v) ? spec.from(v) : v)) : columns[name]);
  return chart({
    ...spec,
    about,
    points,
    write: spec.share ? formatShare : formatNumber,
    ceiling: null,
    series: names.map((name, i) => ({ name: label(name), values: values(name), colour: colourOf(i) })),
  });
}

function prefixed(columns, spec) {
  const skip = new Set(spec.without || []);
  return Object.keys(columns).filter((name) =>
    (name.startsWith(spec.prefix) || (spec.also && spec.also.test(name))) && !skip.has(name));
}

const explained = (curves, names) => names.map((name) => (curves.about || {})[name]).filter(Boolean);

const same = (a, b) => Boolean(b) && a.every((value, i) => value === b[i]);

function heldOut(evals) {
  const names = [...new Set(evals.flatMap((row) => Object.keys(row)))];
  const rates = names.filter((name) => /^(pass|avg|maj)@\d+$/.test(name));
  const k = (name) => Number(name.split("@")[1]);
  const passes = rates.filter((name) => name.startsWith("pass")).sort((a, b) => k(a) - k(b));
  const shown = passes.length > 1 ? [passes[0], passes.at(-1)] : passes.length ? passes : rates.slice(0, 1);
  return shown.map((name, i) => ({
    name: `held-out ${name}`,
    colour: colourOf(i + 1),
    at: evals.filter((row) => known(row[name])).map((row) => ({
      step: row.step, value: row[name], low: row[`${name}/low`], high: row[`${name}/high`],
    })),
  }));
}

// Whatever else was logged, a chart per prefix, folded away.
function drawRest(curves, host) {
  const { columns } = curves;
  const rest = Object.keys(columns).filter((n) => !named.has(n) && !n.startsWith("seconds/"));
  const groups = new Map();
  for (const name of rest) {
    const head = name.includes("/") ? name.slice(0, name.indexOf("/")) : name;
    groups.set(head, [...(groups.get(head) || []), name]);
  }
  if (!groups.size) return;
  const charts = [...groups].map(([head, names]) =>
    chart({
      title: names.length === 1 ? names[0] : head,
      about: explained(curves, names).join("\n"),
      series: names.map((name, i) => ({
        name: name === head ? name : name.slice(head.length + 1), values: columns[name], colour: colourOf(i),
      })),
    }),
  );
  const title = `Other metrics (${rest.length})`;
  host.append(el("details", {}, el("summary", {}, title), el("div", { class: "grid" }, charts)));
}

function drawTime(data, host) {
  const { columns, counted } = data.curves;
  const stages = Object.keys(columns).filter((n) => n.startsWith("seconds/") && n !== "seconds/step");
  const seconds = (name) => data.totals[name] || 0;
  const spent = stages.reduce((sum, name) => sum + seconds(name), 0);
  if (!stages.length || spent <= 0) return;
  const inStep = (name) => !["seconds/evaluate", "seconds/checkpoint"].includes(name);
  const inside = stages.filter(inStep);
  const other = seconds("seconds/step") - inside.reduce((sum, name) => sum + seconds(name), 0);
  const rows = stages.map((name, i) => ({
    name: name.slice(8), total: seconds(name), values: inStep(name) && columns[name], colour: colourOf(i),
  }));
  if (other > 0.01 * spent) rows.push({ name: "other", total: other, colour: "var(--faint)" });
  const total = spent + Math.max(other, 0);
  host.append(el("div", { class: "heading" }, el("h2", {}, "Time"),
    el("span", { class: "aside" }, `${formatSeconds(total)} over ${count(counted, "step")}`)));
  host.append(el("div", { class: "stacked", role: "img", "aria-label": "time per stage" },
    rows.map((row) => el("span", {
      style: `flex-grow:${row.total};background:${row.colour}`,
      title: `${row.name}: ${formatSeconds(row.total)} (${formatShare(row.total / total)})`,
    }))));
  host.append(el("ul", { class: "legend roomy" }, rows.map((row) =>
    el("li", {}, el("i", { style: `background:${row.colour}` }), row.name, " ",
      el("b", {}, formatSeconds(row.total)), ` ${formatShare(row.total / total)}`))));
  const charts = [chart({
    title: "Seconds per step, by stage", series: rows.filter((row) => row.values), stacked: true,
    write: formatSeconds, floor: 0,
  })];
  if (columns.tokens_per_second) {
    const values = columns.tokens_per_second;
    charts.push(chart({
      title: "Sampled tokens per second", floor: 0, about: "Of the whole step's time",
      series: [{ name: "tokens/s", values, colour: colourOf(0) }],
    }));
  }
  host.append(el("div", { class: "grid large" }, charts));
}
