setInterval(async () => {
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Set([...document.querySelectorAll("details[open]")].map((details) => details.dataset.name));
    for (const details of fresh.querySelectorAll("details")) details.open = open.has(details.dataset.name);
    const replaceParts = () => {
      for (const part of ["header", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
    };
    // Charts whose data did not change stay as they are.
    if (window.abMonitorCharts) abMonitorCharts.update(replaceParts);
    else replaceParts();
  } catch {
    const state = document.querySelector(".state");
    state.className = "state bad";
    state.textContent = "no connection";
  }
}, 5000);
