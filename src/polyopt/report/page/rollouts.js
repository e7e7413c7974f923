// The rollout browser and the held-out samples before and after. Groups are parsed when opened.

// `wanted` is what the reader chose: a section that is drawn anew opens it again.
const opened = {
  mode: "advantage", group: 0, pair: 0, filter: "all", wanted: null, wantedPair: null, again: () => {},
};

function drawRollouts(data, host) {
  const { index, shown, logged, steps } = data.groups;
  if (!index.length) return;
  const stops = [...new Set(index.map((entry) => entry.step))];
  const which = shown < logged
    ? `showing ${shown.toLocaleString("en")} of ${count(logged, "logged rollout")}, from ${stops.length.toLocaleString("en")} of ${count(steps, "logged step")}`
    : `all ${count(logged, "logged rollout")}`;
  const slider = el("input", { type: "range", min: 0, max: stops.length - 1, "aria-label": "step" });
  const label = el("output", {});
  const chips = el("div", { class: "chips", role: "tablist" });
  const body = el("div", { class: "group" });
  const choose = (position) => {
    opened.wanted = index[position];
    open(position);
  };
  const go = (step) => choose(closest(index, step, index[opened.group].group));
  const move = (by) => go(stops[Math.min(Math.max(Number(slider.value) + by, 0), stops.length - 1)]);
  const open = (position) => {
    opened.group = position;
    const { step } = index[position];
    slider.value = stops.indexOf(step);
    label.textContent = `step ${step.toLocaleString("en")}`;
    chips.replaceChildren(...groupChips(index, step, choose));
    body.replaceChildren(...groupBody(index[position], readJson(`group-${position}`), () => open(position)));
  };
  slider.addEventListener("input", () => go(stops[slider.value]));
  host.append(
    el("div", { class: "heading" }, el("h2", {}, "Rollouts"), el("span", { class: "aside" }, which)),
    el("p", { class: "aside" }, `${orderWords(data)} Hover or tap a token for its numbers.`),
    el("div", { class: "stepper" },
      el("button", { type: "button", title: "previous step", onclick: () => move(-1) }, "‹"),
      slider,
      el("button", { type: "button", title: "next step", onclick: () => move(1) }, "›"),
      label),
    chips, body,
  );
  opened.again = () => open(startingGroup(index));
  opened.again();
}

// Which rollouts were logged, which of them the page holds, and in what order they stand.
function orderWords({ about, groups }) {
  const { log_groups: most, log_rollouts_every: every } = about.arguments || {};
  const logged = known(most) && known(every) && every > 0
    ? `The run logged the first ${count(most, "group")} that trained at ${every === 1 ? "each step" : `step 1 and every ${every} steps`}; a group is one prompt. `
    : "A group is one prompt. ";
  return logged + (groups.shown < groups.logged
    ? "The page takes logged steps evenly over the run and, of each, groups whose rewards disagree first; in the list they stand by id."
    : "Within a step they stand by id.");
}

// What the reader chose, else `#group=STEP/GROUP`, else the last group whose rollouts disagree.
function startingGroup(index) {
  const hash = readHash();
  if (opened.wanted) return closest(index, opened.wanted.step, opened.wanted.group);
  if (hash.group) {
    const [step, group] = hash.group.split("/");
    const exact = index.findIndex((e) => String(e.step) === step && (group === undefined || e.group === group));
    return exact >= 0 ? exact : closest(index, Number(step) || 0, group);
  }
  const lively = index.findLastIndex((e) => new Set(e.rewards).size > 1);
  return lively >= 0 ? index.findIndex((e) => e.step === index[lively].step && new Set(e.rewards).size > 1) : 0;
}

function closest(index, step, group) {
  const distance = (entry) => Math.abs(entry.step - step) + (entry.group === group ? 0 : 0.5);
  return index.reduce((best, entry, i) => (distance(entry) < distance(index[best]) ? i : best), 0);
}

function readHash() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

function groupChips(index, step, open) {
  const chips = [];
  index.forEach((entry, i) => {
    if (entry.step !== step) return;
    const judged = entry.verdicts.some(known);
    const marks = judged
      ? entry.verdicts.slice(0, 16).map((v) => el("i", { class: !known(v) ? "unknown" : v >= 0.5 ? "right" : "wrong" }))
      : [el("span", { class: "aside" }, rewardRange(entry.rewards))];
    chips.push(el("button", {
      type: "button", role: "tab", "aria-selected": i === opened.group ? "true" : "false",
      title: entry.prompt_id === null ? null : `prompt ${entry.prompt_id}`, onclick: () => open(i),
    }, `group ${entry.group}`, el("span", { class: "marks" }, marks)));
  });
  return chips;
}

function rewardRange(rewards) {
  const values = rewards.filter(known);
  if (!values.length) return "unscored";
  return `${formatNumber(Math.min(...values))} … ${formatNumber(Math.max(...values))}`;
}

function groupBody(entry, group, again) {
  const { rollouts } = group;
  const { mode, most, tools } = colourTools(rollouts, again);
  const missing = group.logged - rollouts.length;
  return [
    promptBox(group, entry.prompt_id),
    tools,
    missing > 0 && el("p", { class: "aside" }, `${count(missing, "more rollout")} of this group not shown.`),
    el("div", { class: "cards" }, rollouts.map((r, i) => card(r, mode, most, `#${r.rollout ?? i}`))),
  ].flat().filter(Boolean);
}

function promptBox(group, promptId) {
  return el("div", { class: "prompt" },
    el("div", { class: "text" }, shortened(group.prompt, group.prompt_cut)),
    el("p", { class: "facts" },
      promptId !== null && promptId !== undefined && el("span", {}, `prompt ${promptId}`),
      group.answer !== null && group.answer !== "" && el("span", {}, "answer ", el("b", {}, group.answer))));
}

const share = (verdicts) => {
  const values = verdicts.filter(known);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
};

function change(entry) {
  const [before, after] = [share(entry.before), share(entry.after)];
  if (before === null || after === null) return "unclear";
  if (after > before) return "gained";
  if (after < before) return "lost";
  return after >= 0.5 ? "right" : "wrong";
}

function drawHeldOut(data, host) {
  const { index, shown, logged } = data.pairs;
  if (!index.length) return;
  const names = { all: "all", gained: "gained", lost: "lost", right: "right both times", wrong: "wrong both times", unclear: "not compared" };
  const kinds = index.map(change);
  const wanted = readHash().pair;
  const kept = index.findIndex((e) => e.prompt_id === opened.wantedPair);
  const start = kept >= 0 ? kept : wanted === undefined ? kinds.indexOf("gained") : index.findIndex((e) => e.prompt_id === wanted);
  opened.pair = Math.max(0, start);
  const filters = el("div", { class: "chips" });
  const body = el("div", { class: "group" });
  const listed = () => index.map((_, i) => i).filter((i) => opened.filter === "all" || kinds[i] === opened.filter);
  const draw = () => {
    const places = listed();
    if (!places.includes(opened.pair)) opened.pair = places[0];
    filters.replaceChildren(...Object.keys(names).filter((k) => k === "all" || kinds.includes(k)).map((k) =>
      el("button", { type: "button", "aria-selected": k === opened.filter ? "true" : "false",
        onclick: () => { opened.filter = k; draw(); } },
      names[k], el("span", { class: "aside" }, k === "all" ? index.length : kinds.filter((kind) => kind === k).length))));
    const place = places.indexOf(opened.pair);
    const step = (by) => {
      opened.pair = places[(place + by + places.length) % places.length];
      opened.wantedPair = index[opened.pair].prompt_id;
      draw();
    };
    body.replaceChildren(
      el("div", { class: "stepper" },
        el("button", { type: "button", title: "previous prompt", onclick: () => step(-1) }, "‹"),
        el("output", {}, `prompt ${place + 1} of ${places.length}`),
        el("button", { type: "button", title: "next prompt", onclick: () => step(1) }, "›")),
      ...pairBody(index[opened.pair], readJson(`pair-${opened.pair}`), draw));
  };
  const which = shown < logged ? `showing ${shown.toLocaleString("en")} of ${count(logged, "logged sample")}` : `all ${count(logged, "logged sample")}`;
  host.append(el("div", { class: "heading" }, el("h2", {}, "Held-out prompts, before and after"), el("span", { class: "aside" }, which)), filters, body);
  draw();
}

function pairBody(entry, pair, again) {
  const all = [...pair.before, ...pair.after];
  const { mode, most, tools } = colourTools(all, again);
  const column = (title, rollouts) => el("div", {}, el("h3", {}, title),
    rollouts.length ? rollouts.map((r, i) => card(r, mode, most, rollouts.length > 1 ? `sample ${i + 1}` : "")) : el("p", { class: "aside" }, "none logged"));
  return [
    promptBox(pair, entry.prompt_id),
    tools,
    el("div", { class: "sides" }, column("before", pair.before), column("after", pair.after)),
  ].flat().filter(Boolean);
}
