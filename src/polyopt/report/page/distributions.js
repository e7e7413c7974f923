// Charts of metrics that are logged by their quantiles.

// A metric that is logged by its quantiles: its median as a line within two bands.
function drawDistribution(spec, columns, absent) {
  const of = (label) => columns[`${spec.quantiles}/${label}`];
  const labels = ["p01", "p10", "p50", "p90", "p99", "max"];
  if (!labels.every(of)) {
    absent.missing.push(spec.title);
    return null;
  }
  labels.forEach((label) => named.add(`${spec.quantiles}/${label}`));
  if (known(spec.still) && [...of("p01"), ...of("max")].every((v) => v === spec.still || v === null)) {
    absent.still.push(spec.title);
    return null;
  }
  const colour = colourOf(0);
  return chart({
    ...spec,
    series: [
      { name: "median", values: of("p50"), colour },
      { name: spec.largest || "largest", values: of("max"), colour, silent: true },
    ],
    bands: [
      { name: "1–99%", low: of("p01"), high: of("p99"), colour, strength: 0.18 },
      { name: "10–90%", low: of("p10"), high: of("p90"), colour, strength: 0.3 },
    ],
  });
}

// The area between two lines; a step at which either is unknown ends it.
function spread(xs, low, high, y, { colour, strength }) {
  const runs = [];
  xs.forEach((x, i) => {
    if (!known(low[i]) || !known(high[i])) return;
    if (i > 0 && known(low[i - 1]) && known(high[i - 1])) runs.at(-1).push(i);
    else runs.push([i]);
  });
  const point = (values) => (i) => `${xs[i].toFixed(1)} ${y(values[i]).toFixed(1)}`;
  const path = runs.map((run) => `M${[...run.map(point(high)), ...run.reverse().map(point(low))].join("L")}Z`);
  return svg("path", { d: path.join(""), class: "spread", style: `fill:${colour};opacity:${strength}` });
}
