// Which games are listed: the index, and what the form asks of it.

const AT_ONCE = 8; // blocks that a search reads

const saidIn = (game) => game.turns.map((turn) => turn.text).join("\n").toLowerCase();

const filters = {
  index: null,
  texts: new Map(), // number of a block: what was said in each of its games, in small letters
  asked: 0, // counts searches: one that ends late does not replace a later one
  said: null, // places of the games in which the searched text was said; null: none is searched

  /** Options for what there is; one that would leave everything in is not offered. What was chosen stays chosen. */
  start(index, texts = new Map(), said = null) {
    this.index = index;
    this.texts = texts;
    this.said = said;
    this.options("filter-stage", [["", index.stages.map((name, place) => [name, place])]]);
    this.options("filter-outcome", [["", index.outcomes.map((name, place) => [name, place])]]);
    if (index.games.length > 1) this.options("filter-game", [["", index.games.map((game, place) => [game.name, place])]]);
    const [first, second] = index.seats;
    const seats = [
      ["Who won", [[first, "won:0"], [second, "won:1"], ["nobody", "won:-1"]]],
      [`${capital(first)}'s seat`, this.players("attacker").map((place) => [index.players[place], `attacker:${place}`])],
      [`${capital(second)}'s seat`, this.players("defender").map((place) => [index.players[place], `defender:${place}`])],
    ];
    this.options("filter-seat", seats.filter(([, options]) => options.length > 1));
  },

  players(seat) {
    return [...new Set(this.index[seat])];
  },

  options(id, groups) {
    const select = byId(id);
    const before = select.selectedOptions[0]?.text;
    const groupBefore = select.selectedOptions[0]?.parentElement.label;
    select.replaceChildren(new Option("any", ""));
    for (const [label, options] of groups) {
      const made = options.map(([name, value]) => new Option(name, value));
      if (!label) {
        select.append(...made);
        continue;
      }
      const group = document.createElement("optgroup");
      group.label = label;
      group.append(...made);
      select.append(group);
    }
    for (const option of select.options) {
      if (option.text === before && option.parentElement.label === groupBefore) option.selected = true;
    }
  },

  /** Places of the games in which the text of `filter-said` was said, block by block; null if there is none to look
   * for; undefined if another search has begun meanwhile. */
  async search(index = this.index, texts = this.texts, stamp = undefined) {
    const wanted = byId("filter-said").value.trim().toLowerCase();
    const asked = ++this.asked;
    if (!wanted) return null;
    const found = new Set();
    const blocks = Math.ceil(index.stage.length / index.blockGames);
    for (let first = 0; first < blocks; first += AT_ONCE) {
      const numbers = Array.from({ length: Math.min(AT_ONCE, blocks - first) }, (_, place) => first + place);
      const unread = numbers.filter((number) => !texts.has(number));
      if (unread.length) byId("count").textContent = `Searching: ${(first * index.blockGames).toLocaleString("en")} games`;
      const read = await Promise.all(unread.map((number) => unpack(`block-${number}`, stamp)));
      if (asked !== this.asked) return undefined;
      unread.forEach((number, place) => texts.set(number, read[place].map(saidIn)));
      for (const number of numbers) {
        texts.get(number).forEach((text, place) => text.includes(wanted) && found.add(number * index.blockGames + place));
      }
    }
    return found;
  },

  /** Places in the index, in its order, of the games that pass. */
  matching() {
    const { stage, outcome, word, game } = this.index;
    const wanted = { stage: byId("filter-stage").value, outcome: byId("filter-outcome").value };
    wanted.game = byId("filter-game")?.value ?? "";
    const text = byId("filter-word").value.trim().toLowerCase();
    const words = this.index.words.map((each) => each.toLowerCase().includes(text));
    const sits = this.seatTest(byId("filter-seat").value);
    const found = [];
    for (let place = 0; place < stage.length; place++) {
      if (wanted.stage !== "" && stage[place] !== Number(wanted.stage)) continue;
      if (wanted.game !== "" && game[place] !== Number(wanted.game)) continue;
      if (wanted.outcome !== "" && outcome[place] !== Number(wanted.outcome)) continue;
      if (words[word[place]] && sits(place) && (this.said?.has(place) ?? true)) found.push(place);
    }
    return found;
  },

  seatTest(value) {
    const [what, number] = value.split(":");
    if (what === "won") {
      // The first two outcomes are the two seats' wins; breaches and ties have no winner.
      return (place) => (number === "-1" ? this.index.outcome[place] > 1 : this.index.outcome[place] === Number(number));
    }
    return what ? (place) => this.index[what][place] === Number(number) : () => true;
  },
};
