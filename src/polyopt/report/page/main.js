// Draws the page; each section is left out when the run has nothing for it.

const data = readJson("run");
const place = (id) => document.getElementById(id);

function drawBar() {
  for (const section of document.querySelectorAll("main > section")) {
    if (section.childElementCount) {
      place("links").append(el("a", { href: `#${section.id}` }, section.dataset.title));
    } else section.remove();
  }
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

function drawFooter() {
  const version = data.about.polyopt ? `polyopt ${data.about.polyopt}` : "polyopt";
  const { curves, groups } = data;
  const words = [`Written by ${version}; this file needs no network.`];
  if (curves.bin > 1) words.push(`Curves show ${count(curves.steps.length, "point")} for ${count(curves.counted, "step")}.`);
  if (groups.shown < groups.logged) {
    words.push(`The run folder's rollouts/ holds the other ${count(groups.logged - groups.shown, "logged rollout")}; polyopt report RUN --rollout-megabytes 50 puts more into the page.`);
  }
  place("left-out").append(words.join(" "));
}

drawCurves(data, place("curves"));
drawSummary(data, place("summary"));
drawRollouts(data, place("rollouts"));
drawHeldOut(data, place("heldout"));
drawTime(data, place("time"));
drawPipeline(data, place("pipeline"));
drawSettings(data, place("settings"));
drawBar();
drawFooter();
document.addEventListener("pointerover", showTip);
document.addEventListener("scroll", () => { place("tip").hidden = true; }, { capture: true, passive: true });
document.documentElement.dataset.ready = String(Math.round(performance.now()));
const target = document.getElementById(location.hash.slice(1)) || (readHash().group && place("rollouts"));
if (target) target.scrollIntoView();
