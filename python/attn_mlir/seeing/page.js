"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const panes = { source: [], left: [], right: [] };
const events = [];
let kept = null;

const TOKEN = /(\/\/.*$|#(?!\w).*$)|("(?:[^"\\]|\\.)*")|(%[\w$.#]+|\^\w+)|\b((?:arith|math|tensor|memref|scf|vector|llvm|func|cf|index)\.[\w.]+|def|return|lambda|const|float|int|for|if|else|import|from)\b/g;

function colour(element, text) {
  let end = 0;
  for (const found of text.matchAll(TOKEN)) {
    element.append(text.slice(end, found.index));
    const span = document.createElement("span");
    span.className = found[1] ? "c" : found[2] ? (/^"(attn|tile|warp)\./.test(found[2]) ? "o" : "t") : found[3] ? "v" : "o";
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

// Places in functions are level 0, lines of the schedule (negative) level 1, lines of kernels in the warp dialect level 2.
const FORMED = -1000000;
const level = (n) => (n >= 0 ? 0 : n > FORMED ? 1 : 2);

// Two lines are compared at the finest level that both have: what shares something there is meant, what shares a coarser one is near.
function meets(links, other) {
  for (const fine of [2, 1, 0]) {
    const mine = links.filter((n) => level(n) === fine);
    if (!mine.length || ![...other].some((n) => level(n) === fine)) continue;
    if (mine.some((n) => other.has(n))) return "hit";
    return links.some((n) => level(n) < fine && other.has(n)) ? "near" : "";
  }
  return "";
}

function light(entry) {
  const links = entry ? [...entry.links] : [];
  for (const side of Object.keys(panes)) {
    for (const other of panes[side]) {
      const how = meets(links, other.links);
      const list = other.element.classList;
      list.toggle("hit", how === "hit");
      list.toggle("near", how === "near");
      list.toggle("self", other === entry);
    }
  }
  for (const event of events) event.element.classList.toggle("tl-hit", meets(links, event.links) === "hit");
  const status = document.getElementById("status");
  status.textContent = entry && entry.links.size ? told(entry) : "\u00a0";
}

function told(entry) {
  const at = (fine) => [...entry.links].filter((n) => level(n) === fine);
  const places = at(0).map((n) => `${data.places[n][0]}:${data.places[n][1]}:${data.places[n][2]}`);
  const lines = at(1).map((n) => `schedule line ${-n}`);
  return [...places, ...lines, ...at(2).map((n) => `warp-kernel line ${FORMED - n}`)].join("  ");
}

// An event of a timeline is a line of its kernel: it lights up the same, and a click shows the kernel and scrolls there.
function showTimelines() {
  for (const box of document.querySelectorAll(".timeline")) {
    const timeline = data.timelines[Number(box.dataset.timeline)];
    const words = box.nextElementSibling;
    for (const element of box.querySelectorAll(".tl-event")) {
      const [line, links] = timeline.events[Number(element.dataset.event)];
      element.entry = { element, links: new Set(links), side: "timeline", text: element.querySelector("title").textContent, number: line };
      events.push(element.entry);
    }
    const entryOf = (event) => event.target.closest(".tl-event")?.entry;
    box.addEventListener("mouseover", (event) => {
      const entry = entryOf(event) || null;
      if (entry) words.textContent = [entry.text, told(entry)].join("   ");
      if (!kept) light(entry);
    });
    box.addEventListener("mouseleave", () => { if (!kept) light(null); });
    box.addEventListener("click", (event) => {
      const entry = entryOf(event);
      if (!entry) return;
      kept = null;
      showStage("left", data.stages.findIndex((stage) => stage.run === timeline.run && stage.name === timeline.stage));
      kept = entry;
      light(entry);
      scrollOthers(entry);
      document.getElementById("code").scrollIntoView();
    });
  }
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
showTimelines();
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
