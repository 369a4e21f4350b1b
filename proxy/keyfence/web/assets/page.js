// Refreshes the parts of a page that carry `data-region`, over one stream, while the page is visible.
// Everything works without this file: it only saves pressing F5.

const live = document.body.dataset.live;
const pulse = document.getElementById("pulse");
const news = document.getElementById("news");
const SPEAK_EVERY = 30000; // ms between two announcements to a screen reader
const TRY_AGAIN = 3000; // ms after which a stream is asked for again that was refused
const FOCUSABLE = "a[href], button, summary, input, select, [tabindex]";
const held = new Map(); // regions in which the reader selects text: what they will show afterwards
let stream = null;
let again = 0;
let counted = null;
let spoken = 0;

function open() {
  clearTimeout(again);
  if (stream || document.hidden || !live) return;
  stream = new EventSource("/live?view=" + encodeURIComponent(live));
  stream.addEventListener("regions", (event) => {
    const { regions, findings } = JSON.parse(event.data);
    for (const [id, html] of Object.entries(regions)) replace(id, html);
    announce(findings);
    pulse.textContent = "live";
  });
  stream.onerror = () => {
    pulse.textContent = "not live: keyfence does not answer";
    if (stream.readyState !== EventSource.CLOSED) return; // the browser connects again by itself
    close();
    again = setTimeout(open, TRY_AGAIN);
  };
}

function close() {
  clearTimeout(again);
  if (stream) stream.close();
  stream = null;
}

// Replaces a region, and keeps what the reader has focused, opened and scrolled. While they select text in it,
// it waits.
function replace(id, html) {
  const region = document.getElementById(id);
  if (!region) return;
  if (isSelected(region)) {
    held.set(id, html);
    return;
  }
  held.delete(id);
  const refocus = focusIn(region);
  const opened = [...region.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  region.innerHTML = html;
  region.querySelectorAll("details").forEach((one, index) => { if (index in opened) one.open = opened[index]; });
  region.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  refocus();
}

function isSelected(region) {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && region.contains(selection.anchorNode);
}

// Returns a function that focuses what has taken the place of the focused element of a region.
function focusIn(region) {
  const before = document.activeElement;
  if (!region.contains(before)) return () => {};
  const { id, tagName } = before;
  const href = before.getAttribute("href");
  const index = [...region.querySelectorAll(FOCUSABLE)].indexOf(before);
  return () => {
    const all = [...region.querySelectorAll(FOCUSABLE)];
    const same = (id && document.getElementById(id)) || (href && all.find((one) => one.getAttribute("href") === href));
    const there = all[Math.min(index, all.length - 1)];
    const next = same || (there && there.tagName === tagName ? there : region.querySelector(tagName) || there);
    if (next) next.focus({ preventScroll: true });
  };
}

// Opens what folds away the target of a link.
function unfold() {
  let id = "";
  try { id = decodeURIComponent(location.hash.slice(1)); } catch { return; } // it is no id
  const target = document.getElementById(location.hash.slice(1)) || document.getElementById(id);
  const folded = target && target.closest("details:not([open])");
  if (!folded) return;
  folded.open = true;
  target.scrollIntoView();
}

function announce(findings) {
  if (findings === null) return;
  const now = Date.now();
  if (counted !== null && findings > counted && now - spoken > SPEAK_EVERY) {
    const more = findings - counted;
    news.textContent = more === 1 ? "1 new finding" : `${more} new findings`;
    spoken = now;
    counted = findings;
  } else if (counted === null || findings < counted) {
    counted = findings;
  }
}

document.addEventListener("selectionchange", () => {
  for (const [id, html] of held) replace(id, html);
});
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);
addEventListener("hashchange", unfold);
unfold();
open();
