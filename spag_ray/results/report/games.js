// The browser of games: a list of which only what is in view exists, and the game that is chosen.

const ROW_PX = 52;
const KEPT_BLOCKS = 16;

const games = {
  index: null,
  listed: [],
  chosen: -1, // place in `listed`
  blocks: new Map(), // number: promise of its games; the last that were looked at
  shown: 0, // counts choices: a game that is unpacked late is not shown over a later one

  async start() {
    this.index = await unpack("index");
    filters.start(this.index);
    byId("filters").addEventListener("input", (event) => (event.target.id === "filter-said" ? this.search() : this.filter()));
    byId("filters").addEventListener("reset", () => setTimeout(() => this.search(0)));
    byId("filters").addEventListener("submit", (event) => event.preventDefault());
    byId("list").addEventListener("scroll", () => this.paint());
    byId("list").addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.choose(Number(row.dataset.place));
    });
    new ResizeObserver(() => this.paint()).observe(byId("list"));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.follow());
    if (!(await this.follow())) await this.filter(this.index.opened);
  },

  /** Shows the game that the address names, `#game=STAGE/NUMBER`. Returns whether it names one of this page. */
  async follow() {
    const named = location.hash.match(/^#game=(.+)\/(\d+)$/);
    const stage = named ? this.index.stages.findIndex((each) => encodeURIComponent(each) === named[1]) : -1;
    const place = stage < 0 ? -1 : this.placeOf(stage, Number(named[2]));
    if (place < 0) return false;
    byId("filters").reset();
    filters.said = null;
    await this.filter(place);
    byId("games").scrollIntoView();
    return true;
  },

  placeOf(stage, number) {
    return this.index.stage.findIndex((each, place) => each === stage && this.index.number[place] === number);
  },

  address(place) {
    return `#game=${encodeURIComponent(this.index.stages[this.index.stage[place]])}/${this.index.number[place]}`;
  },

  /** The games as they are now, and those of them in which what is searched was said. The game that is shown stays. */
  take(index, texts, said) {
    const before = this.listed[this.chosen];
    const shown = before === undefined ? null : [this.index.stages[this.index.stage[before]], this.index.number[before]];
    this.index = index;
    this.blocks = new Map();
    filters.start(index, texts, said ?? null);
    this.list();
    const place = shown ? this.placeOf(index.stages.indexOf(shown[0]), shown[1]) : index.opened;
    this.chosen = this.listed.indexOf(place);
    this.paint();
    if (!shown) this.choose(Math.max(this.chosen, 0));
    if (said === undefined) this.search(0);
  },

  /** A search waits until the reader stops to type. */
  search(wait = 250) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      const { index } = this;
      let said;
      try {
        said = await filters.search();
      } catch {
        said = null;
        byId("filter-said").value = "";
      }
      if (said === undefined) return;
      if (index !== this.index) {
        this.search(0); // of games that have changed
        return;
      }
      filters.said = said;
      this.filter();
    }, wait);
  },

  filter(before = this.listed[this.chosen]) {
    this.list();
    const kept = before === undefined ? -1 : this.listed.indexOf(before);
    return this.choose(kept >= 0 ? kept : 0);
  },

  /** The games that pass the filters. */
  list() {
    this.listed = filters.matching();
    const total = this.index.stage.length;
    const some = this.listed.length === total ? "" : `${this.listed.length.toLocaleString("en")} of `;
    byId("count").textContent = `${some}${total.toLocaleString("en")} game${total === 1 ? "" : "s"}`;
    byId("rows").style.height = `${this.listed.length * ROW_PX}px`;
  },

  /** What the page says of the game that was played there. */
  indexOf(place) {
    const { games, game } = this.index;
    return { ...this.index, ...games[game[place]] };
  },

  facts(place) {
    const index = this.indexOf(place);
    return {
      word: index.words[index.word[place]],
      outcome: index.outcomes[index.outcome[place]],
      stage: index.stages[index.stage[place]] + (index.name ? ` \u00b7 ${index.name}` : ""),
      number: index.number[place],
      turns: index.turns[place],
    };
  },

  /** The rows in view, and a few more. */
  paint() {
    const list = byId("list");
    const first = Math.max(0, Math.floor(list.scrollTop / ROW_PX) - 4);
    const last = Math.min(this.listed.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW_PX) + 4);
    const rows = [];
    for (let place = first; place < last; place++) rows.push(this.row(place));
    byId("rows").replaceChildren(...rows);
    const active = byId(`row-${this.chosen}`);
    if (active) list.setAttribute("aria-activedescendant", active.id);
    else list.removeAttribute("aria-activedescendant");
  },

  row(place) {
    const facts = this.facts(this.listed[place]);
    const row = element("div", `row outcome-${this.index.outcome[this.listed[place]]}`);
    row.id = `row-${place}`;
    row.dataset.place = place;
    row.style.top = `${place * ROW_PX}px`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(place === this.chosen));
    row.setAttribute("aria-posinset", String(place + 1));
    row.setAttribute("aria-setsize", String(this.listed.length));
    row.append(element("b", "", facts.word));
    row.append(element("span", "", `${facts.outcome} \u00b7 ${counted(facts.turns, "turn")} \u00b7 ${facts.stage}`));
    return row;
  },

  async choose(place) {
    this.chosen = Math.min(Math.max(place, 0), this.listed.length - 1);
    const list = byId("list");
    const top = this.chosen * ROW_PX;
    if (this.chosen < 0) list.scrollTop = 0;
    else if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW_PX > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW_PX - list.clientHeight;
    this.paint();
    const turn = ++this.shown;
    if (this.chosen < 0) {
      byId("game").replaceChildren(element("p", "missing", "No game passes the filters."));
      return;
    }
    const game = this.listed[this.chosen];
    const [facts, index, steps] = [this.facts(game), this.indexOf(game), this.steps()]; // before the wait: all of one reading
    try {
      const block = await this.block(Math.floor(game / index.blockGames));
      if (turn === this.shown) showGame(byId("game"), block[game % index.blockGames], facts, index, steps);
    } catch {
      if (turn === this.shown) byId("game").replaceChildren(element("p", "missing", "This game could not be read; choose it again."));
    }
  },

  block(number) {
    const { blocks } = this;
    const found = blocks.get(number) ?? unpack(`block-${number}`);
    blocks.delete(number);
    blocks.set(number, found); // at the end: used last
    found.catch(() => blocks.delete(number)); // the next one who asks tries again
    if (blocks.size > KEPT_BLOCKS) blocks.delete(blocks.keys().next().value);
    return found;
  },

  /** Buttons for who has no keyboard. */
  steps() {
    const made = element("div", "steps");
    const link = element("a", "", "Link");
    link.href = this.address(this.listed[this.chosen]);
    link.title = "The address of this game";
    made.append(link);
    for (const [text, label, step] of [["\u2190", "Previous game", -1], ["\u2192", "Next game", 1]]) {
      const button = element("button", "", text);
      button.type = "button";
      button.setAttribute("aria-label", label);
      button.disabled = this.chosen + step < 0 || this.chosen + step >= this.listed.length;
      button.addEventListener("click", async () => {
        await this.choose(this.chosen + step);
        const same = byId("game").querySelector(`button[aria-label="${label}"]`);
        (same.disabled ? byId("list") : same).focus({ preventScroll: true });
      });
      made.append(button);
    }
    return made;
  },

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.closest("input, select, textarea") !== null;
    const inList = document.activeElement === byId("list");
    if (event.key === "Escape" && isTyping) byId("list").focus();
    else if (isTyping) return;
    else if (event.key === "/") byId("filter-word").focus();
    else if (event.key === "j" || (inList && event.key === "ArrowDown")) this.choose(this.chosen + 1);
    else if (event.key === "k" || (inList && event.key === "ArrowUp")) this.choose(this.chosen - 1);
    else if (inList && event.key === "Home") this.choose(0);
    else if (inList && event.key === "End") this.choose(this.listed.length - 1);
    else return;
    event.preventDefault();
    // What was in focus there is about to be replaced.
    if (byId("game").contains(document.activeElement)) byId("list").focus({ preventScroll: true });
  },
};

/** `report-ready`: the first game is shown, and the list can be used. */
document.addEventListener("DOMContentLoaded", async () => {
  if (typeof DecompressionStream === "undefined") {
    byId("count").textContent = "This browser cannot unpack the games and charts; a newer one can.";
    return;
  }
  try {
    await games.start();
    performance.mark("report-ready");
    document.documentElement.dataset.ready = "yes";
    await new Promise((resume) => requestAnimationFrame(() => setTimeout(resume)));
    await charts.start();
    await curves.start();
  } finally {
    document.dispatchEvent(new Event("reportstarted"));
  }
});
