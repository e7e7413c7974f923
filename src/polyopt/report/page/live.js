// Keeps the page of `polyopt watch` current: asks for news, and draws anew what changed.

const live = { ...readJson("watch"), data, heard: Date.now(), lost: false };
const badge = el("span", { id: "live" });
place("theme").before(badge);

const changed = (before, after) => JSON.stringify(before) !== JSON.stringify(after);

function sayState() {
  const { phase, words, live: going, age } = live.state;
  const silent = (Date.now() - live.heard) / 1000;
  badge.dataset.phase = live.lost ? "lost" : phase;
  const parts = live.lost
    ? [`no answer from polyopt watch for ${formatSeconds(Math.round(silent))}`]
    : [going ? "live" : "ended", words];
  if (!live.lost && phase === "running" && known(age) && age + silent >= 10) {
    parts.push(`last step ${formatSeconds(Math.round(age + silent))} ago`);
  }
  badge.title = parts.join(" · ");
  badge.replaceChildren(el("b", {}, parts[0]), parts.length > 1 ? ` · ${parts.slice(1).join(" · ")}` : "");
  document.title = `${going && !live.lost ? `${live.state.step} · ` : ""}${live.data.title}: polyopt run`;
}

// The rollouts as elements that `readJson` finds; texts that the page has are kept.
function takeTexts(keys, texts) {
  const had = new Map();
  for (const [name, key] of Object.entries(live.keys)) {
    const element = document.getElementById(name);
    had.set(key, element.textContent);
    element.remove();
  }
  for (const [name, key] of Object.entries(keys)) {
    const element = el("script", { type: "application/json", id: name });
    element.textContent = texts[key] ?? had.get(key);
    document.body.append(element);
  }
  live.keys = keys;
}

// Draws sections in place: what is unfolded or scrolled stays so, and charts don't blink.
function redraw(names) {
  const top = scrollY;
  const hosts = names.map(place);
  const find = (selector) => hosts.flatMap((host) => [...host.querySelectorAll(selector)]);
  const unfolded = find("details").map((details) => details.open);
  const scrolled = find(".cards, .text").map((box) => [box.scrollLeft, box.scrollTop]);
  if (names.includes("curves")) shared.charts = [];
  drawSections(live.data, names);
  find("details").forEach((details, i) => { details.open = Boolean(unfolded[i]); });
  for (const state of shared.charts) {
    const width = Math.floor(state.frame.clientWidth);
    if (width > 0 && width !== state.width) {
      state.width = width;
      drawChart(state);
    }
  }
  find(".cards, .text").forEach((box, i) => {
    if (scrolled[i]) [box.scrollLeft, box.scrollTop] = scrolled[i];
  });
  scrollTo({ top, behavior: "instant" });
}

function take(news) {
  const before = live.data;
  const after = news.data;
  const rollouts = changed([before.groups, Object.values(live.keys)], [after.groups, Object.values(news.keys)]);
  const names = ["curves", "summary", "time"];
  takeTexts(news.keys, news.texts);
  live.data = after;
  if (rollouts) names.push("rollouts");
  if (rollouts || changed(before.pairs, after.pairs)) names.push("heldout");
  if (changed(before.about, after.about)) names.push("pipeline", "settings");
  redraw(names);
  drawFooter(after, origin);
}

async function ask() {
  const answer = await fetch(`/news?server=${live.server}&since=${live.version}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(answer.statusText);
  const news = await answer.json();
  if (news.server !== live.server) {
    location.reload();
    return;
  }
  live.heard = Date.now();
  live.lost = false;
  live.state = news.state;
  if (news.version !== live.version) take(news);
  live.version = news.version;
}

async function keepAsking() {
  try {
    await ask();
  } catch {
    live.lost = true;
  }
  sayState();
  const patience = live.lost || !live.state.live ? 3 : 1;
  setTimeout(keepAsking, 1000 * live.every * patience);
}

const origin = "Served by polyopt watch.";
drawFooter(data, origin);
sayState();
keepAsking();
