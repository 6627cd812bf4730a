// Which games are listed: the index, and what the form asks of it.

const filters = {
  index: null,

  /** Options for what there is; one that would leave everything in is not offered. */
  start(index) {
    this.index = index;
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
    select.append(new Option("any", ""));
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
      if (words[word[place]] && sits(place)) found.push(place);
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
