"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const panes = { source: [], left: [], right: [] };
let kept = null;

const TOKEN = /(\/\/.*$|#(?!\w).*$)|("(?:[^"\\]|\\.)*")|(%[\w$.#]+|\^\w+)|\b((?:arith|math|tensor|memref|scf|vector|llvm|func|cf|index)\.[\w.]+|def|return|lambda|const|float|int|for|if|else|import|from)\b/g;

function colour(element, text) {
  let end = 0;
  for (const found of text.matchAll(TOKEN)) {
    element.append(text.slice(end, found.index));
    const span = document.createElement("span");
    span.className = found[1] ? "c" : found[2] ? (/^"(attn|tile)\./.test(found[2]) ? "o" : "t") : found[3] ? "v" : "o";
    span.textContent = found[0];
    element.append(span);
    end = found.index + found[0].length;
  }
  element.append(text.slice(end));
}

function row(side, number, text, links, parent) {
  const element = document.createElement("div");
  element.className = links.length ? "row linked" : "row";
  const gutter = document.createElement("i");
  gutter.textContent = number;
  const code = document.createElement("code");
  colour(code, text);
  element.append(gutter, code);
  element.dataset.links = links.join(" ");
  parent.append(element);
  const entry = { element, links: new Set(links), side, text, number };
  element.entry = entry;
  panes[side].push(entry);
}

function showSources() {
  const list = document.getElementById("listing-source");
  const inner = document.createElement("div");
  for (const source of data.sources) {
    const role = document.createElement("div");
    role.className = "role";
    role.append(source.role ? source.role + "  " : "");
    const place = document.createElement("span");
    place.textContent = source.place;
    role.append(place);
    inner.append(role);
    source.lines.forEach((text, i) => row("source", source.first ? source.first + i : "", text, source.links[i], inner));
  }
  list.append(inner);
}

function showStage(side, index) {
  const stage = data.stages[index];
  const list = document.getElementById("listing-" + side);
  panes[side] = [];
  list.replaceChildren();
  const inner = document.createElement("div");
  stage.lines.forEach((text, i) => row(side, i + 1, text, stage.links[i], inner));
  list.append(inner);
  const first = panes[side].find((entry) => entry.links.size);
  list.scrollTop = first ? first.element.offsetTop - list.offsetTop - 40 : 0;  // behind what every kernel begins with
  document.getElementById("about-" + side).textContent = stage.about;
  document.getElementById("about-" + side).title = stage.about;
  document.getElementById("stage-" + side).value = index;
  light(kept);
}

// Lines of the schedule have negative numbers; where the line pointed at has one, what shares it is meant, and the rest is near.
function light(entry) {
  const exact = entry ? [...entry.links].filter((n) => n < 0) : [];
  const places = entry ? [...entry.links].filter((n) => n >= 0) : [];
  for (const side of Object.keys(panes)) {
    for (const other of panes[side]) {
      const line = exact.some((n) => other.links.has(n));
      const place = places.some((n) => other.links.has(n));
      const known = side !== "source" && exact.length && [...other.links].some((n) => n < 0);
      const list = other.element.classList;
      list.toggle("hit", Boolean(entry) && (line || (place && !known)));
      list.toggle("near", Boolean(entry) && place && known && !line);
      list.toggle("self", other === entry);
    }
  }
  const status = document.getElementById("status");
  status.textContent = entry && entry.links.size ? told(entry) : "\u00a0";
}

function told(entry) {
  const places = [...entry.links].filter((n) => n >= 0).map((n) => `${data.places[n][0]}:${data.places[n][1]}:${data.places[n][2]}`);
  const lines = [...entry.links].filter((n) => n < 0).map((n) => `schedule line ${-n}`);
  return [...places, ...lines].join("  ");
}

function scrollOthers(entry) {
  for (const side of Object.keys(panes)) {
    if (side === entry.side) continue;
    const first = panes[side].find((other) => other.element.classList.contains("hit"));
    if (!first) continue;
    const list = document.getElementById("listing-" + side);
    list.scrollTop = first.element.offsetTop - list.offsetTop - list.clientHeight / 3;
  }
}

function listen(side) {
  const list = document.getElementById("listing-" + side);
  const entryOf = (event) => event.target.closest(".row")?.entry;
  list.addEventListener("mouseover", (event) => { if (!kept) light(entryOf(event) || null); });
  list.addEventListener("mouseleave", () => { if (!kept) light(null); });
  list.addEventListener("click", (event) => {
    const entry = entryOf(event);
    if (!entry || !entry.links.size) return;
    kept = kept === entry ? null : entry;
    light(entry);
    if (kept) scrollOthers(entry);
  });
}

showSources();
for (const side of ["left", "right"]) {
  const select = document.getElementById("stage-" + side);
  const runs = [...new Set(data.stages.map((stage) => stage.run))];
  for (const run of runs) {
    const group = document.createElement("optgroup");
    group.label = run;
    data.stages.forEach((stage, i) => {
      if (stage.run !== run) return;
      const option = document.createElement("option");
      option.value = i;
      option.textContent = stage.scheduled ? stage.name + " (schedule)" : stage.name;
      group.append(option);
    });
    select.append(group);
  }
  select.addEventListener("change", () => { kept = null; showStage(side, Number(select.value)); });
}
for (const side of Object.keys(panes)) listen(side);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") { kept = null; light(null); } });
const scheduled = data.stages.findIndex((stage) => stage.scheduled);
const last = data.stages.findLastIndex((stage) => stage.run === data.stages[0].run);
showStage("left", Math.max(0, scheduled));
showStage("right", last);
document.documentElement.dataset.ready = "true";
