// Renews the page of a run that goes on: asks the server what is new, and replaces what has changed. What the reader has
// chosen, opened and scrolled to stays.

const ASK_EVERY_MS = 2000;
const KEPT = ["games-title", "curves-title"]; // sections that renew themselves

const live = {
  sections: new Map(), // name: the text that the server sent last
  points: -1, // curves' points that are shown

  async start() {
    for (const section of document.querySelectorAll("main > section")) {
      this.sections.set(section.getAttribute("aria-labelledby"), null);
    }
    byId("runs")?.addEventListener("change", (event) => (location.search = `?run=${event.target.value}`));
    for (;;) {
      await new Promise((resume) => setTimeout(resume, ASK_EVERY_MS));
      if (document.visibilityState === "hidden") continue; // the server reads no files for a page that nobody sees
      try {
        await this.look();
      } catch {
        this.say("lost", "not renewed: no answer");
      }
    }
  },

  async look() {
    const html = document.documentElement;
    const answer = await fetch(`api/state?run=${html.dataset.run}`);
    if (!answer.ok) throw new Error(`${answer.status}`);
    const state = await answer.json();
    if (String(state.stamp) !== html.dataset.stamp) await this.renew(state.stamp);
    if (state.points !== this.points) {
      curves.take(await (await fetch("api/curves")).json());
      this.points = state.points;
    }
    this.say(state.ended ? "ended" : "live", state.fault || (state.ended ? state.ended : `live, ${new Date().toLocaleTimeString()}`));
  },

  say(state, text) {
    byId("live").dataset.state = state;
    byId("live").textContent = text;
  },

  async renew(stamp) {
    const html = document.documentElement;
    const text = await (await fetch(`./?run=${html.dataset.run}`)).text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    html.dataset.stamp = fresh.documentElement.dataset.stamp ?? stamp;
    const main = document.querySelector("main");
    let next = null;
    for (const section of [...fresh.querySelectorAll("main > section")].reverse()) {
      const name = section.getAttribute("aria-labelledby");
      const here = main.querySelector(`:scope > section[aria-labelledby="${name}"]`);
      const isSame = KEPT.includes(name) || this.sections.get(name) === section.innerHTML;
      if (here && isSame) {
        next = here;
        continue;
      }
      this.sections.set(name, section.innerHTML);
      const made = document.adoptNode(section);
      if (here) {
        carry(here, made);
        here.replaceWith(made);
      } else main.insertBefore(made, next);
      next = made;
    }
    document.querySelector(".top nav").replaceChildren(...document.adoptNode(fresh.querySelector(".top nav")).childNodes);
    await charts.renew();
    await games.renew();
  },
};

/** Drawn charts and opened details of a section stay in the one that takes its place. */
function carry(before, after) {
  for (const plot of before.querySelectorAll(".plot")) {
    const place = after.querySelector(`#${CSS.escape(plot.id)}`);
    if (!place) continue;
    plot.setAttribute("aria-label", place.getAttribute("aria-label"));
    plot.style.height = place.style.height;
    place.replaceWith(plot);
  }
  const opened = new Set([...before.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  for (const summary of after.querySelectorAll("details > summary")) {
    if (opened.has(summary.textContent)) summary.parentElement.open = true;
  }
}

document.addEventListener("reportdrawn", () => live.start());
