// One completion as a card: verdict, reward, and its tokens coloured by a number of each.

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
  const mean = rollout.tokens ? meanAdvantage(rollout) : null;
  if (known(mean)) facts.push(`advantage ${formatSigned(mean)}${Array.isArray(rollout.advantages) ? " (mean)" : ""}`);
  return el("header", {},
    el("span", { class: "name" }, title),
    el("span", { class: `badge ${state}` }, words[state]),
    el("span", { class: "reward", title: "reward" }, rollout.reward === null ? "unscored" : formatNumber(rollout.reward)),
    facts.length > 0 && el("span", { class: "facts" }, facts.map((fact) => el("span", {}, fact))),
    terms.length > 1 && el("span", { class: "facts" }, terms.map(([name, v]) => el("span", {}, `${name} ${formatNumber(v)}`))));
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
  const policyToken = sampled(rollout, i);
  const rows = [["token", `${position + 1} of ${rollout.length}`], ...(policyToken ? numbersOf(rollout, i) : [])];
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

// Every number that was logged of a token, written with its unit.
function numbersOf(rollout, i) {
  const logp = at(rollout.logp, i);
  const out = Array.isArray(rollout.loss_weight) && !known(rollout.loss_weight[i]);
  const parts = Object.keys(rollout).filter((name) => name.startsWith("advantages/"));
  return [
    ["advantage", at(rollout.advantages, i), formatSigned],
    ...parts.map((name) => [`… of ${name.slice("advantages/".length)}`, at(rollout[name], i), formatSigned]),
    ["… less the rollout's mean", Array.isArray(rollout.advantages) ? centred(rollout, i) : null, formatSigned],
    ["weight in the loss", at(rollout.loss_weight, i), formatSigned],
    ["importance ratio", at(rollout.ratio, i), (v) => `×${formatNumber(v)}`],
    ["probability", known(logp) ? Math.exp(logp) : null, formatShare],
    ["log-probability", logp, (v) => `${formatNumber(v)} nats`],
    ["entropy", at(rollout.entropy, i), (v) => `${formatNumber(v)} nats`],
  ].filter(([, value]) => known(value)).map(([name, value, write]) => [name, write(value)])
    .concat(out ? [["weight in the loss", "none: left out of it"]] : []);
}
