/* Shows times in the reader's zone, applies filters at once, and brings the page up to date in place. */
const localTime = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short",
});

/* Writes the times of a part of a document in the reader's zone; the title keeps the time in UTC. */
function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    if (time.title) continue;
    time.title = time.textContent;
    time.textContent = localTime.format(new Date(time.dateTime));
  }
}

function isSameChart(old, fresh) {
  const specification = (figure) => figure.querySelector('script[type="application/json"]')?.textContent;
  return specification(old) === specification(fresh);
}

/* Changes an element into another one. Unchanged elements stay, and with them focus, scrolling and drawn charts. */
function morph(old, fresh) {
  for (const name of old.getAttributeNames()) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  let next = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const known = node.id && old.querySelector(`:scope > #${CSS.escape(node.id)}`);
    if (known && known !== next) old.insertBefore(known, next);
    const match = known || next;
    if (match?.nodeType === 1 && match.nodeName === node.nodeName && match.id === node.id) {
      next = match.nextSibling;
      if (!match.matches("figure.chart")) morph(match, node);
      else if (!isSameChart(match, node)) match.replaceWith(node);
    } else if (match?.nodeType === 3 && node.nodeType === 3) {
      if (match.data !== node.data) match.data = node.data;
      next = match.nextSibling;
    } else old.insertBefore(node, next);
  }
  while (next) {
    const rest = next.nextSibling;
    next.remove();
    next = rest;
  }
}

function showProblem(text) {
  const state = document.querySelector(".state");
  state.className = "state bad";
  state.textContent = text;
}

/* Fetches the page again. Other scripts draw what is new on the event "page-updated". A page that could not be read
   keeps its content; an answer that a later request has overtaken is dropped. */
let request = new AbortController();
async function update() {
  request.abort();
  const { signal } = (request = new AbortController());
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal });
    if (answer.redirected || answer.status === 401 || answer.status === 403) {
      showProblem("signed out: load the page again");
      return;
    }
    if (answer.status >= 500) {
      showProblem("not up to date");
      return;
    }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    localize(fresh);
    for (const part of ["header", "main"]) morph(document.querySelector(part), fresh.querySelector(part));
    document.dispatchEvent(new CustomEvent("page-updated"));
  } catch (error) {
    if (error.name !== "AbortError") showProblem("no connection");
  }
}

localize(document);
const refreshSeconds = Number(document.body.dataset.refreshSeconds);
if (refreshSeconds) setInterval(() => document.hidden || update(), 1000 * refreshSeconds);
document.addEventListener("visibilitychange", () => refreshSeconds && !document.hidden && update());

/* A form with filters takes effect at once: its fields become the query of the address. */
let typing;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form.filters");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const fields = [...new FormData(form)].filter(([, text]) => text);
    history.replaceState(null, "", `?${new URLSearchParams(fields)}`);
    update();
  }, 200);
});

/* A share link is copied. Without the clipboard, which browsers offer only over HTTPS, the link opens. */
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a.share");
  if (!link || !navigator.clipboard) return;
  event.preventDefault();
  await navigator.clipboard.writeText(link.href);
  link.textContent = "Link copied: valid for seven days";
});
