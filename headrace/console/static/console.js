// What htmx does not do: stop while the tab is hidden, say that the console is gone, bound the list of events,
// move between segments with the arrow keys, and copy.
"use strict";

const offline = () => document.getElementById("offline");

// A part that is read once, when the page is loaded, is read when a tab that was opened in the background is shown.
const postponed = new Set();
document.addEventListener("htmx:beforeRequest", (event) => {
  if (!document.hidden) return;
  event.preventDefault();
  postponed.add(event.detail.elt);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const part of postponed) {
    if (part.isConnected) htmx.ajax("GET", part.getAttribute("hx-get"), { source: part });
  }
  postponed.clear();
});
for (const name of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(name, () => { offline().hidden = false; });
}
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) offline().hidden = true;
  if (event.detail.successful && event.detail.elt.hasAttribute("data-reload")) location.reload();
});

document.addEventListener("htmx:afterSettle", () => {
  boundEvents();
  prepareMap();
});

function boundEvents() {
  const list = document.getElementById("live-events");
  if (!list) return;
  const log = list.parentElement;
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80 || !list.dataset.began;
  while (list.children.length > Number(list.dataset.max)) list.firstElementChild.remove();
  if (list.children.length) list.dataset.began = "yes";
  if (follows) log.scrollTop = log.scrollHeight;
}

const segmentLinks = () => [...document.querySelectorAll("#map svg a:not(.moment)")];

// One tab stop for all segments: the one that had the focus last, else the newest.
let lastSegment = null;
function prepareMap() {
  const links = segmentLinks();
  const current = links.find((link) => link.id && link.id === lastSegment) || links[links.length - 1];
  for (const link of links) link.setAttribute("tabindex", link === current ? "0" : "-1");
}

const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

document.addEventListener("keydown", (event) => {
  const direction = DIRECTIONS[event.key];
  const link = event.target.closest ? event.target.closest("#map svg a:not(.moment)") : null;
  if (!direction || !link) return;
  event.preventDefault();
  const centre = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  const [x, y] = centre(link.getBBox());
  let best = null, bestDistance = Infinity;
  for (const other of segmentLinks()) {
    const [otherX, otherY] = centre(other.getBBox());
    const along = (otherX - x) * direction[0] + (otherY - y) * direction[1];
    const across = Math.abs((otherX - x) * direction[1]) + Math.abs((otherY - y) * direction[0]);
    if (other !== link && along > 0.5 && along + 2 * across < bestDistance) {
      best = other;
      bestDistance = along + 2 * across;
    }
  }
  if (best) {
    lastSegment = best.id;
    prepareMap();
    best.focus();
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest ? event.target.closest("button[data-copy]") : null;
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});

prepareMap();
