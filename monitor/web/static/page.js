setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of ["header", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
  } catch {
    const state = document.querySelector(".state");
    state.className = "state bad";
    state.textContent = "no connection";
  }
}, 5000);
