// Renews the page of a run that goes on: asks the server what is new, and replaces what has changed. What the reader has
// chosen, opened and scrolled to stays. Everything of a reading is fetched before anything of it is shown.

const ASK_EVERY_MS = 2000;
const KEPT = ["games-title", "curves-title"]; // sections that renew themselves

const FOCUSABLE = "main > section[aria-labelledby] :is(a[href], button, input, select, summary, [tabindex])";

const live = {
  // {name: the text that the server sent last}: this script runs before anything is drawn
  sections: new Map([...document.querySelectorAll("main > section")].map((each) => [each.getAttribute("aria-labelledby"), each.innerHTML])),
  points: -1, // curves' points that are shown

  async start() {
    const runs = byId("runs");
    if (runs) {
      runs.value = document.documentElement.dataset.run; // after Back, browsers show what was chosen before
      runs.addEventListener("change", () => (location.search = `?run=${runs.value}`));
    }
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
    const state = await (await answerOf(`api/state?run=${html.dataset.run}`)).json();
    if (String(state.stamp) !== html.dataset.stamp) await this.renew();
    if (state.points !== this.points) {
      await curves.renew();
      this.points = state.points;
    }
    if (state.fault) this.say("lost", state.fault);
    else this.say(state.ended ? "ended" : "live", state.ended || `live: last measured ${state.measured}`);
  },

  /** Written only when it changes: a screen reader tells it. */
  say(state, text) {
    byId("live").dataset.state = state;
    if (byId("live").textContent !== text) byId("live").textContent = text;
  },

  async renew() {
    const html = document.documentElement;
    const text = await (await answerOf(`./?run=${html.dataset.run}`)).text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const { stamp } = fresh.documentElement.dataset;
    const [figures, index] = await Promise.all([unpack("figures", stamp), unpack("index", stamp)]);
    const texts = new Map();
    const said = await filters.search(index, texts, stamp);
    // From here on nothing waits, so nobody sees parts of two readings.
    html.dataset.stamp = stamp;
    const focus = focusOf(document.activeElement);
    this.replace(fresh);
    charts.take(figures);
    games.take(index, texts, said);
    if (!document.activeElement.matches(FOCUSABLE)) focus?.()?.focus({ preventScroll: true });
  },

  replace(fresh) {
    const main = document.querySelector("main");
    let next = null;
    for (const section of [...fresh.querySelectorAll("main > section")].reverse()) {
      const name = section.getAttribute("aria-labelledby");
      const here = main.querySelector(`:scope > section[aria-labelledby="${name}"]`);
      if (here && (KEPT.includes(name) || this.sections.get(name) === section.innerHTML)) {
        next = here;
        continue;
      }
      this.sections.set(name, section.innerHTML);
      const made = document.adoptNode(section);
      if (here) {
        carry(here, made);
        here.replaceWith(made);
        [...made.querySelectorAll(".scrolls")].forEach((each) => (each.scrollLeft = Number(each.dataset.left ?? 0)));
      } else main.insertBefore(made, next);
      next = made;
    }
    const [nav, links] = [document.querySelector(".top nav"), fresh.querySelector(".top nav")];
    if (nav.innerHTML !== links.innerHTML) nav.replaceChildren(...document.adoptNode(links).childNodes);
  },
};

/** How to find what takes an element's place when its section is renewed; null if it is in none. */
function focusOf(focused) {
  if (!focused.matches(FOCUSABLE)) return null;
  const toldOf = (each) => {
    const section = each.closest("main > section").getAttribute("aria-labelledby");
    return `${section} ${each.tagName} ${each.getAttribute("aria-label") ?? each.textContent}`;
  };
  const told = toldOf(focused);
  const alike = () => [...document.querySelectorAll(FOCUSABLE)].filter((each) => toldOf(each) === told);
  const place = alike().indexOf(focused);
  return () => alike()[place];
}

/** Drawn charts, opened details and scrolled tables of a section stay in the one that takes its place. */
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
  const tables = after.querySelectorAll(".scrolls");
  before.querySelectorAll(".scrolls").forEach((each, place) => {
    if (tables[place]) tables[place].dataset.left = each.scrollLeft;
  });
}

if (isLive()) document.addEventListener("reportstarted", () => live.start());
