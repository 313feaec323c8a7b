"use strict";
// The server renders every value; this only carries the parts of a newer page into the one shown.
const parts = "[id]";
const leaf = (element) => !element.querySelector(parts);
let answered = new Date();

function carry(page) {
  for (const fresh of page.querySelectorAll(parts)) {
    const shown = document.getElementById(fresh.id);
    if (!shown || fresh.id === "unreachable") continue;
    for (const name of ["class", "hidden", "aria-current", "aria-valuenow"]) {
      if (!fresh.hasAttribute(name)) shown.removeAttribute(name);
      else if (shown.getAttribute(name) !== fresh.getAttribute(name)) shown.setAttribute(name, fresh.getAttribute(name));
    }
    if (leaf(fresh) && shown.innerHTML !== fresh.innerHTML) shown.replaceChildren(...fresh.childNodes);
  }
  document.title = page.title;
  document.querySelector("h1").textContent = page.querySelector("h1").textContent;
  document.body.dataset.state = page.body.dataset.state;
}

async function refresh() {
  const note = document.getElementById("unreachable");
  try {
    const answer = await fetch("", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    carry(new DOMParser().parseFromString(await answer.text(), "text/html"));
    answered = new Date();
    note.hidden = true;
  } catch (error) {
    const text = `No answer from this server since ${answered.toLocaleTimeString()}; what is shown below is from then.`;
    if (note.hidden || note.textContent !== text) note.textContent = text;
    note.hidden = false;
  }
  setTimeout(refresh, document.hidden ? 10000 : 2000);
}
setTimeout(refresh, 1000);
