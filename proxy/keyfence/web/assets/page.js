// Refreshes the parts of a page that carry `data-region`, over one stream, while the page is visible.
// Everything works without this file: it only saves pressing F5.

const live = document.body.dataset.live;
const pulse = document.getElementById("pulse");
const news = document.getElementById("news");
const SPEAK_EVERY = 30000; // ms between two announcements to a screen reader
let stream = null;
let counted = null;
let spoken = 0;

function open() {
  if (stream || document.hidden || !live) return;
  stream = new EventSource("/live?view=" + encodeURIComponent(live));
  stream.addEventListener("regions", (event) => {
    const { regions, findings } = JSON.parse(event.data);
    for (const [id, html] of Object.entries(regions)) replace(id, html);
    announce(findings);
    pulse.textContent = "live";
  });
  stream.addEventListener("bye", close);
  stream.onerror = () => { pulse.textContent = "not live: keyfence does not answer"; };
}

function close() {
  if (stream) stream.close();
  stream = null;
}

// Replaces a region, unless the reader is selecting text in it, and keeps what they have focused and opened.
function replace(id, html) {
  const region = document.getElementById(id);
  if (!region) return;
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && region.contains(selection.anchorNode)) return;
  const focused = region.contains(document.activeElement) ? document.activeElement : null;
  const opened = [...region.querySelectorAll("details")].map((one) => one.open);
  const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  region.innerHTML = html;
  region.querySelectorAll("details").forEach((one, index) => { if (index in opened) one.open = opened[index]; });
  region.querySelectorAll(".scroll").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
  if (focused) again(region, focused)?.focus({ preventScroll: true });
}

function again(region, before) {
  if (before.id) return document.getElementById(before.id);
  const href = before.getAttribute("href");
  if (href) return region.querySelector(`a[href="${CSS.escape(href)}"]`);
  return before.getAttribute("aria-label") && region.querySelector(`[aria-label="${CSS.escape(before.getAttribute("aria-label"))}"]`);
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

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);
open();
