// One completion as a card: verdict, reward, and its tokens coloured by a number of each.

const modes = {
  advantage: { label: "advantage", read: (r, i) => at(r.advantages, i), diverging: true },
  within: { label: "within rollout", read: (r, i) => centred(r, i), diverging: true },
  entropy: { label: "entropy", read: (r, i) => at(r.entropy, i), colour: "--entropy" },
  probability: {
    label: "probability", colour: "--surprise",
    read: (r, i) => (known(at(r.logp, i)) ? 1 - Math.exp(at(r.logp, i)) : null),
  },
  plain: { label: "none", read: () => null },
};

// A column is a list, or one number that holds for every token.
const at = (column, i) => (Array.isArray(column) ? column[i] : column);
const sampled = (rollout, i) => rollout.mask === undefined || at(rollout.mask, i) === 1;

function centred(rollout, i) {
  const value = at(rollout.advantages, i);
  if (!known(value)) return null;
  if (rollout.centre === undefined) {
    const values = rollout.tokens.map((_, j) => at(rollout.advantages, j)).filter((v, j) => known(v) && sampled(rollout, j));
    rollout.centre = values.reduce((a, b) => a + b, 0) / (values.length || 1);
  }
  return value - rollout.centre;
}

function available(rollouts) {
  const some = (name) => rollouts.some((r) => r.tokens && r[name] !== undefined && r[name] !== null);
  const found = [];
  if (some("advantages")) found.push("advantage");
  if (rollouts.some((r) => r.tokens && Array.isArray(r.advantages))) found.push("within");
  if (some("entropy")) found.push("entropy");
  if (some("logp")) found.push("probability");
  return found.length ? [...found, "plain"] : [];
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

function card(rollout, mode, most, title) {
  const text = rollout.tokens ? tokenText(rollout, mode, most) : plainText(rollout);
  const node = el("article", { class: `card ${tone(rollout)}` }, cardHead(rollout, title), text);
  node.rollout = rollout;
  return node;
}

const tone = (r) => (!known(r.accuracy) ? "unknown" : r.accuracy >= 0.5 ? "right" : "wrong");

function cardHead(rollout, title) {
  const state = tone(rollout);
  const words = { right: "✓ right", wrong: "✗ wrong", unknown: "not judged" };
  const terms = Object.entries(rollout.terms || {});
  const facts = [];
  if (known(rollout.length)) facts.push(count(rollout.length, "token"));
  if (rollout.finish === "length") facts.push("truncated");
  const mean = meanAdvantage(rollout);
  if (known(mean)) facts.push(`advantage ${formatSigned(mean)}${Array.isArray(rollout.advantages) ? " (mean)" : ""}`);
  return el("header", {},
    el("span", { class: "name" }, title),
    el("span", { class: `badge ${state}` }, words[state]),
    el("span", { class: "reward", title: "reward" }, rollout.reward === null ? "unscored" : formatNumber(rollout.reward)),
    facts.length > 0 && el("span", { class: "facts" }, facts.map((fact) => el("span", {}, fact))),
    terms.length > 1 && el("span", { class: "facts" }, terms.map(([name, v]) => el("span", {}, `${name} ${formatNumber(v)}`))));
}

function meanAdvantage(rollout) {
  if (!Array.isArray(rollout.advantages)) return rollout.advantages;
  if (!rollout.tokens) return null;
  centred(rollout, 0);
  const values = rollout.advantages.filter((v, j) => known(v) && sampled(rollout, j));
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function tokenText(rollout, mode, most) {
  const body = el("div", { class: "text" });
  const cut = rollout.cut;
  rollout.tokens.forEach((token, i) => {
    if (cut && i === cut[0]) body.append(leftOut(`${count(cut[1], "token")} left out`));
    const trained = sampled(rollout, i);
    const classes = ["t", trained ? "" : "forced", /\n/.test(token) ? "break" : ""].filter(Boolean).join(" ");
    const style = trained ? paint(modes[mode].read(rollout, i), mode, most) : "";
    body.append(el("span", { class: classes, style: style || null, "data-i": i }, token));
  });
  return body;
}

function plainText(rollout) {
  return el("div", { class: "text" }, shortened(rollout.completion, rollout.completion_cut));
}

// A text, or its beginning and end with how much is missing between them.
function shortened(text, cut) {
  if (!Array.isArray(text)) return [text || el("span", { class: "aside" }, "(empty)")];
  return [text[0], leftOut(`${count(cut, "character")} left out`), text[1]];
}

const leftOut = (words) => el("span", { class: "cut" }, `… ${words} …`);

function legendFor(mode, most) {
  if (mode === "plain" || most <= 0) {
    return mode === "plain" ? null : el("span", { class: "aside" }, `${modes[mode].label} is 0 on every token`);
  }
  if (modes[mode].diverging) {
    return el("span", { class: "scale" }, `≤ ${formatSigned(-most)}`, el("i", { class: "diverging" }), `≥ ${formatSigned(most)}`);
  }
  const ends = mode === "probability" ? ["1", "0"] : ["0", `≥ ${formatNumber(most)}`];
  return el("span", { class: "scale" }, ends[0], el("i", { style: `--to:var(${modes[mode].colour})` }), ends[1]);
}

function showTip(event) {
  const span = event.target.closest && event.target.closest(".t");
  const tip = document.getElementById("tip");
  if (!span) {
    tip.hidden = true;
    return;
  }
  const rollout = span.closest(".card").rollout;
  const i = Number(span.dataset.i);
  const cut = rollout.cut;
  const position = cut && i >= cut[0] ? i + cut[1] : i;
  const logp = at(rollout.logp, i);
  const policyToken = sampled(rollout, i);
  const rows = [["token", `${position + 1} of ${rollout.length}`]];
  if (known(at(rollout.advantages, i))) rows.push(["advantage", formatSigned(at(rollout.advantages, i))]);
  if (known(logp) && policyToken) rows.push(["probability", formatShare(Math.exp(logp))], ["log-probability", `${formatNumber(logp)} nats`]);
  if (known(at(rollout.entropy, i))) rows.push(["entropy", `${formatNumber(at(rollout.entropy, i))} nats`]);
  tip.replaceChildren(el("code", {}, JSON.stringify(rollout.tokens[i])),
    el("p", { hidden: policyToken }, "not sampled by the policy: no credit"),
    el("dl", {}, rows.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  tip.hidden = false;
  const box = span.getClientRects()[0] || span.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left), innerWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
}
