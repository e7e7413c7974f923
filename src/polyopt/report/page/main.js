// Draws the page; each section is hidden when the run has nothing for it.

const data = readJson("run");
const place = (id) => document.getElementById(id);
const drawings = {
  curves: drawCurves,
  summary: drawSummary,
  rollouts: drawRollouts,
  heldout: drawHeldOut,
  time: drawTime,
  pipeline: drawPipeline,
  settings: drawSettings,
};

function drawSections(data, names) {
  for (const name of names) {
    place(name).replaceChildren();
    drawings[name](data, place(name));
  }
  drawLinks();
}

function drawLinks() {
  place("links").replaceChildren();
  for (const section of document.querySelectorAll("main > section")) {
    section.hidden = !section.childElementCount;
    if (section.hidden) continue;
    place("links").append(el("a", { href: `#${section.id}` }, section.dataset.title));
  }
}

function offerThemes() {
  const themes = ["auto", "light", "dark"];
  let theme = Math.max(0, themes.indexOf(readHash().theme));
  const apply = () => {
    document.documentElement.dataset.theme = themes[theme];
    place("theme").textContent = { auto: "◐ auto", light: "○ light", dark: "● dark" }[themes[theme]];
  };
  place("theme").addEventListener("click", () => {
    theme = (theme + 1) % themes.length;
    apply();
  });
  apply();
}

function drawFooter(data, origin) {
  const { curves, groups } = data;
  const words = [origin];
  if (curves.bin > 1) words.push(`Curves show ${count(curves.steps.length, "point")} for ${count(curves.counted, "step")}.`);
  if (groups.shown < groups.logged) {
    words.push(`The run folder's rollouts/ holds the other ${count(groups.logged - groups.shown, "logged rollout")}; polyopt report RUN --rollout-megabytes 50 puts more into the page.`);
  }
  place("left-out").textContent = words.join(" ");
}

function readColour() {
  const { colour } = readHash();
  if (colour) opened.mode = colour;
}

readColour();
const writer = data.about.polyopt ? `polyopt ${data.about.polyopt}` : "polyopt";
drawSections(data, Object.keys(drawings));
offerThemes();
drawFooter(data, `Written by ${writer}; this file needs no network.`);
document.addEventListener("pointerover", showTip);
addEventListener("hashchange", () => {
  if (!readHash().group) return;
  opened.wanted = null;
  readColour();
  opened.again();
});
document.addEventListener("scroll", () => { place("tip").hidden = true; }, { capture: true, passive: true });
document.documentElement.dataset.ready = String(Math.round(performance.now()));
const target = document.getElementById(location.hash.slice(1)) || (readHash().group && place("rollouts"));
if (target) target.scrollIntoView();
