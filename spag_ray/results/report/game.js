// One game: chat bubbles, shades, the deciding words. Everything that a player said is set as text.
// Styles call the first seat of any game attacker.

const STRONGEST = 0.45; // shade of a token
const FULL_NATS = 6; // of surprise, at which it is reached

/** A game's turns and the referee's word. `facts`: what the index knows of it. */
function showGame(into, game, facts, index, steps) {
  const head = element("header");
  head.append(element("h3", "", facts.word), element("span", "", facts.outcome), steps);
  head.append(element("p", "facts", describeGame(game, facts, index)));
  const known = game.turns.filter((turn) => turn.known !== undefined);
  if (known.length) head.append(knownCurve(known.map((turn) => turn.known)));
  const turns = element("ol", "turns");
  game.turns.forEach((turn, place) => turns.append(showTurn(turn, place, game, index)));
  const ruling = element("p", "ruling");
  ruling.append(element("b", "", index.hasReferee ? "Referee: " : "Ruling: "), `${facts.outcome}; ${game.reason}.`);
  into.replaceChildren(head, turns, ruling);
  into.setAttribute("aria-label", `Game on the ${index.scenario} ${facts.word}: ${facts.outcome}`);
}

function describeGame(game, facts, index) {
  return (
    `${facts.stage}, game ${facts.number}: ${game.turns.length} of at most ${counted(2 * game.maxTurns, "turn")}, ` +
    `temperature ${game.temperature}${index.hasReferee ? `, referee ${game.rules}` : ""}`
  );
}

function showTurn(turn, place, game, index) {
  const made = element("li", `turn ${turn.seat === 0 ? "attacker" : "defender"}`);
  const who = element("p", "who");
  who.append(element("b", "", index.seats[turn.seat]), ` ${describeTurn(turn, index)}`);
  const bubble = element("p", "bubble");
  if (turn.thought) bubble.append(element("span", "thought", turn.thought));
  if (turn.text) bubble.append(...shaded(turn, place === game.decided ? game.span : null, index.stepsPerNat));
  else bubble.append(element("span", "empty", "says nothing"));
  if (place === game.decided) made.classList.add("decides");
  made.append(who, bubble);
  return made;
}

function describeTurn(turn, index) {
  const [first, last] = turn.versions;
  const parts = [index.players[turn.player], first === last ? `version ${first}` : `versions ${first} to ${last}`];
  parts.push(counted(turn.tokens, "token"));
  if (turn.mean !== undefined) parts.push(`mean log-probability ${signed(turn.mean, 2)}`);
  if (turn.reward === null) parts.push("imitated");
  else if (turn.reward !== undefined) parts.push(`reward ${signed(turn.reward, 3)}`);
  if (turn.known !== undefined) parts.push(`could have known ${percent(turn.known)}`);
  if (turn.heard !== undefined) parts.push(`before it the listener gave the word ${percent(turn.heard)}`);
  if (turn.finish !== "stop") parts.push(`cut off: ${turn.finish}`);
  return parts.join(" \u00b7 ");
}

/** How probable the word was to the defender, turn by turn: a point each, from 0 at the bottom to 1 at the top. */
function knownCurve(shares) {
  const [step, height, edge] = [64, 72, 22];
  const places = shares.map((share, turn) => [edge + 12 + step * turn, height - 8 - (height - 8 - edge) * share]);
  const width = 2 * (edge + 12) + step * (shares.length - 1);
  const drawing = drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  const said = shares.map((share, turn) => `turn ${turn + 1}: ${percent(share)}`).join(", ");
  drawing.setAttribute("aria-label", `How probable the word was to the defender: ${said}`);
  drawing.append(drawn("line", { x1: 0, x2: width, y1: height - 8, y2: height - 8, class: "zero" }));
  drawing.append(drawn("polyline", { points: places.map((place) => place.join(",")).join(" ") }));
  places.forEach(([x, y], turn) => {
    drawing.append(drawn("circle", { cx: x, cy: y, r: 3.5 }));
    const label = drawn("text", { x, y: y - 9, "text-anchor": "middle" });
    label.textContent = percent(shares[turn]);
    drawing.append(label);
  });
  const made = element("figure", "known");
  made.append(element("figcaption", "", "Probability of the word, had the defender guessed at its turn"), drawing);
  return made;
}

function drawn(kind, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** 34%, 1.2%, <0.1%. */
function percent(share) {
  const value = 100 * share;
  if (value < 0.1) return value > 0 ? "<0.1%" : "0%";
  return `${value.toFixed(value >= 10 ? 0 : 1)}%`;
}

/** With a minus that is as wide as a plus. */
const signed = (value, digits) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(digits);

/** The text in pieces: each token in its shade, what decided marked. Places count characters, not UTF-16 units. */
function shaded(turn, span, stepsPerNat) {
  const characters = Array.from(turn.text);
  const tokens = turn.lengths
    ? turn.lengths.map((length, place) => [length, turn.surprise[place] / stepsPerNat])
    : [[characters.length, turn.mean === undefined ? null : -turn.mean]];
  const [from, to] = span ?? [0, 0];
  const mark = element("mark");
  const pieces = [];
  let begin = 0;
  for (const [length, nats] of tokens) {
    const end = begin + length;
    const cuts = [begin, ...[from, to].filter((cut) => begin < cut && cut < end), end];
    for (let part = 0; part + 1 < cuts.length; part++) {
      const text = characters.slice(cuts[part], cuts[part + 1]).join("");
      if (!text) continue;
      const isMarked = from <= cuts[part] && cuts[part + 1] <= to;
      if (isMarked && !pieces.includes(mark)) pieces.push(mark);
      const piece = shade(text, nats);
      if (isMarked) mark.append(piece);
      else pieces.push(piece);
    }
    begin = end;
  }
  return pieces;
}

function shade(text, nats) {
  const piece = element("span", "token", text);
  if (nats !== null) {
    piece.style.setProperty("--shade", (STRONGEST * Math.min(1, nats / FULL_NATS)).toFixed(3));
    piece.title = `log-probability ${signed(-nats, 2)}`;
  }
  return piece;
}
