// The numbers by which tokens can be coloured: how each is read, painted and explained.

const logRatio = (r, i) => (at(r.ratio, i) > 0 ? Math.log(at(r.ratio, i)) : null);
const asRatio = (v) => `×${formatNumber(Math.exp(v))}`;

// `column` is what a rollout must have; a diverging mode is blue above 0 and orange below.
const modes = {
  advantage: {
    label: "advantage", column: "advantages", diverging: true, read: (r, i) => at(r.advantages, i),
    about: "The credit that the method gives the token: blue for it, orange against it.",
  },
  within: {
    label: "within rollout", column: "advantages", varies: true, diverging: true, read: (r, i) => centred(r, i),
    about: "Advantage less the mean of its rollout: the tokens that the method singles out.",
  },
  weight: {
    label: "weight in the loss", column: "loss_weight", diverging: true, read: (r, i) => at(r.loss_weight, i),
    about: "−dL/dlogp, summed over the step's updates: how hard they push the token up (blue) or down (orange). Clipped tokens have 0.",
  },
  ratio: {
    label: "ratio", column: "ratio", diverging: true, read: logRatio, write: asRatio,
    about: "Importance ratio at the token's last update: blue where it had become likelier, orange where less likely.",
  },
  entropy: {
    label: "entropy", column: "entropy", colour: "--entropy", read: (r, i) => at(r.entropy, i),
    about: "Of the policy before it sampled the token, in nats.",
  },
  probability: {
    label: "probability", column: "logp", colour: "--surprise",
    read: (r, i) => (known(at(r.logp, i)) ? 1 - Math.exp(at(r.logp, i)) : null),
    about: "The stronger the colour, the less likely the token was when it was sampled.",
  },
  plain: { label: "none", read: () => null },
};

// A column is a list, or one number that holds for every token.
const at = (column, i) => (Array.isArray(column) ? column[i] : column);
const sampled = (rollout, i) => rollout.mask === undefined || at(rollout.mask, i) === 1;

function centred(rollout, i) {
  const value = at(rollout.advantages, i);
  if (!known(value)) return null;
  if (rollout.centre === undefined) rollout.centre = meanAdvantage(rollout);
  return value - rollout.centre;
}

function meanAdvantage(rollout) {
  if (!Array.isArray(rollout.advantages)) return rollout.advantages;
  const values = rollout.advantages.filter((v, j) => known(v) && sampled(rollout, j));
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : 0;
}

// Where several parts give credit, one may colour by the share of any that tells tokens apart.
function nameParts(rollouts) {
  for (const column of rollouts.flatMap(Object.keys)) {
    if (!column.startsWith("advantages/") || modes[column]) continue;
    const part = column.slice("advantages/".length);
    modes[column] = {
      label: part, column, varies: true, diverging: true, read: (r, i) => at(r[column], i),
      about: `What ${part} alone adds to each token's advantage: blue for it, orange against it.`,
    };
  }
}

function available(rollouts) {
  nameParts(rollouts);
  const { plain, ...coloured } = modes;
  const found = Object.keys(coloured).filter((name) => {
    const { column, varies } = modes[name];
    return rollouts.some((r) => r.tokens && (varies ? Array.isArray(r[column]) : known(at(r[column], 0)) || Array.isArray(r[column])));
  });
  const credit = (name) => Number(modes[name].column.startsWith("advantages"));
  return found.length ? [...found.sort((a, b) => credit(b) - credit(a)), "plain"] : [];
}

// The size that gets the full colour: exceeded by one token in fifty of the group, so that a few
// outliers don't bleach the rest; one in probability.
function strongest(rollouts, mode) {
  if (mode === "probability") return 1;
  const sizes = [];
  for (const rollout of rollouts) {
    (rollout.tokens || []).forEach((_, i) => {
      const value = sampled(rollout, i) ? modes[mode].read(rollout, i) : null;
      if (known(value)) sizes.push(Math.abs(value));
    });
  }
  sizes.sort((a, b) => a - b);
  return sizes[Math.floor(0.98 * sizes.length)] || sizes.at(-1) || 0;
}

function paint(value, mode, most) {
  if (!known(value) || most <= 0) return "";
  const { diverging, colour } = modes[mode];
  const strength = Math.min(1, Math.abs(value) / most);
  if (strength < 0.005) return "";
  const name = diverging ? (value > 0 ? "--gain" : "--blame") : colour;
  return `background:color-mix(in srgb, var(${name}) ${Math.round(8 + 64 * strength ** 0.8)}%, transparent)`;
}

// Buttons for the modes that a group's rollouts have, the scale of the chosen one, what it shows.
function colourTools(rollouts, again) {
  const choices = available(rollouts);
  const mode = choices.includes(opened.mode) ? opened.mode : choices[0] || "plain";
  const most = strongest(rollouts, mode);
  const buttons = choices.map((name) => el("button", {
    type: "button", "aria-pressed": name === mode ? "true" : "false",
    onclick: () => { opened.mode = name; again(); },
  }, modes[name].label));
  const tools = choices.length > 0 && [
    el("div", { class: "tools" },
      el("span", { class: "aside" }, "colour by"), el("span", { class: "segments" }, buttons), scaleFor(mode, most)),
    modes[mode].about && el("p", { class: "aside about" }, modes[mode].about),
  ];
  return { mode, most, tools };
}

function scaleFor(mode, most) {
  const { label, diverging, colour, write = formatSigned } = modes[mode];
  if (mode === "plain") return null;
  if (most <= 0) return el("span", { class: "aside" }, mode === "ratio" ? "exactly 1 on every token" : `${label} is 0 on every token`);
  const [low, high, kind] = diverging
    ? [`≤ ${write(-most)}`, `≥ ${write(most)}`, "diverging"]
    : [mode === "probability" ? "1" : "0", mode === "probability" ? "0" : `≥ ${formatNumber(most)}`, ""];
  return el("span", { class: "scale" }, low, el("i", { class: kind, style: diverging ? null : `--to:var(${colour})` }), high);
}
