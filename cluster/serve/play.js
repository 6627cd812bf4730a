"use strict";

// A game against the model. The server's answers are plain data; every text is set as text (element, shaded).

const POLL_MS = 400;
const KEPT = "spag-visit"; // the id of this tab's game

let table = null;
let game = null;
let shownTurns = "";
let polling = 0;

async function ask(address, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(data.error ?? `The server says ${answer.status}.`), { status: answer.status });
  return data;
}

function tell(message) {
  byId("error").textContent = message ? capital(message) : "";
  byId("error").hidden = !message;
}

const show = (id, isShown) => (byId(id).hidden = !isShown);
const seatName = (seat) => table.seats[seat];

// Before the game.

const SAYS = [
  "You know the word. Make the other say it without noticing, and do not say it yourself.",
  "You do not know the word. Find out what it is, do not say it by accident, and guess once.",
];

function showSetup() {
  game = null;
  clearTimeout(polling);
  keep(null);
  show("play", false);
  show("setup", true);
  chooseSeat();
}

function chosenSeat() {
  return Number(document.querySelector("input[name=seat]:checked").value);
}

function chooseSeat() {
  const seat = chosenSeat();
  const input = byId("scenario");
  input.disabled = !table.mayChoose[seat];
  if (input.disabled) input.value = "";
  input.placeholder = input.disabled ? "hidden from you" : "empty: one is given to you";
  byId("scenario-note").textContent = input.disabled
    ? `The ${table.scenario} is drawn for you, and shown after the game.`
    : `Choose a ${table.scenario}, or let one be drawn.`;
  const other = 1 - seat;
  const usable = table.stages.filter((stage) => stage.seats.includes(other));
  const before = byId("stage").value;
  byId("stage").replaceChildren(...usable.map(({ name }) => Object.assign(element("option", "", name), { value: name })));
  byId("stage").value = usable.some(({ name }) => name === before) ? before : usable.at(-1)?.name ?? "";
  byId("start").disabled = !usable.length;
}

async function start(event) {
  event.preventDefault();
  tell("");
  byId("start").disabled = true;
  try {
    const scenario = byId("scenario").value.trim() || null;
    update(await ask("/api/games", { seat: chosenSeat(), stage: byId("stage").value, scenario }));
  } catch (error) {
    tell(error.message);
    byId("scenario").focus();
  } finally {
    byId("start").disabled = false;
  }
}

// The game.

function keep(id) {
  try {
    if (id) sessionStorage.setItem(KEPT, id);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // then a reload begins anew
  }
}

function update(state) {
  const before = game;
  game = state;
  keep(state.id);
  show("setup", false);
  show("play", true);
  showTable();
  showTurns();
  showWaiting();
  showSpeaking(before);
  showEnd(before);
  clearTimeout(polling);
  if ((state.toMove === "model" && !state.fault) || state.looksBack) polling = setTimeout(poll, POLL_MS);
}

async function poll() {
  const { id } = game;
  try {
    const state = await ask(`/api/games/${id}`);
    if (game?.id !== id) return;
    tell("");
    update(state);
  } catch (error) {
    if (game?.id !== id) return;
    tell(error.message);
    if (error.status === 404) showSetup();
    else polling = setTimeout(poll, 5 * POLL_MS);
  }
}

/** Ask the server for a step of this game. */
async function step(what, body = {}) {
  tell("");
  try {
    update(await ask(`/api/games/${game.id}/${what}`, body));
    return true;
  } catch (error) {
    tell(error.message);
    if (error.status === 404) showSetup();
    return false;
  }
}

function showTable() {
  const own = capital(seatName(game.seat));
  byId("table-kicker").textContent = `You are the ${seatName(game.seat)}`;
  byId("table-title").textContent = game.scenario ?? (table.guesses ? "A hidden word" : `Your seat: ${own}`);
  const at = game.over ? `${counted(game.turns.length, "turn")}` : `turn ${game.turns.length + 1} of at most ${game.maxTurns}`;
  byId("table-facts").textContent = `against ${game.stage} \u00b7 ${at}`;
}

function showTurns() {
  const state = JSON.stringify([game.turns, game.over]);
  if (state === shownTurns) return;
  shownTurns = state;
  byId("turns").replaceChildren(...game.turns.map(showOneTurn));
}

function showOneTurn(turn, place) {
  const isMine = turn.seat === game.seat;
  const made = element("li", `turn ${turn.seat === 0 ? "attacker" : "defender"} ${isMine ? "mine" : "theirs"}`);
  const who = element("p", "who");
  const parts = [isMine ? "you" : game.stage];
  if (turn.finish === "length") parts.push("cut off: too long");
  if (turn.mean !== undefined) parts.push(`mean log-probability ${signed(turn.mean, 2)}`);
  who.append(element("b", "", seatName(turn.seat)), ` ${parts.join(" \u00b7 ")}`);
  const bubble = element("p", "bubble");
  const decides = game.over !== null && place === game.over.decided;
  if (turn.thought) bubble.append(element("span", "thought", turn.thought), " ");
  if (turn.text) bubble.append(...shaded(turn.lengths ? turn : { text: turn.text }, decides ? game.over.span : null, 1));
  else bubble.append(element("span", "empty", turn.text === null ? "has moved" : "says nothing"));
  if (decides) made.classList.add("decides");
  made.append(who, bubble);
  return made;
}

function showWaiting() {
  const waits = game.toMove === "model" && !game.fault;
  show("waits", waits);
  const before = game.numBefore ? ` (${game.numBefore} before you)` : "";
  byId("waits-says").textContent = game.isLoading ? `${game.stage} is being loaded.` : `${game.stage} is thinking${before}.`;
  show("fault", game.fault !== null);
  byId("fault-says").textContent = game.fault === null ? "" : `${game.stage} did not answer: ${game.fault}.`;
}

function showSpeaking(before) {
  const isMine = game.toMove === "person";
  show("speak", isMine);
  show("reads", isMine && game.reads !== null);
  byId("reads").textContent = game.reads ?? "";
  const knows = game.scenario !== null;
  byId("text-label").textContent = table.guesses
    ? knows ? "Talk about it, without the word" : "Ask, or talk; if you know the word, say so"
    : "Your turn";
  show("claim", isMine && table.guesses && game.seat === 1);
  if (isMine && (before?.id !== game.id || before.toMove !== "person")) {
    byId("text").focus();
    byId("speak").scrollIntoView({ block: "nearest" });
  }
}

async function speak(event) {
  event.preventDefault();
  const said = byId("text").value;
  if (!said.trim() || game.toMove !== "person") return;
  if (await step("turns", { text: said })) byId("text").value = "";
}

/** The words with which a guess is made; the person writes the word. */
function beginClaim() {
  const [opening, closing] = table.claim.split("{word}");
  const input = byId("text");
  input.value = opening + closing;
  input.focus();
  input.setSelectionRange(opening.length, opening.length);
}

// After the game.

const RESULTS = new Map([[1, "You win"], [0.5, "A tie"], [0, "You lose"]]);

function showEnd(before) {
  const { over } = game;
  show("over", over !== null);
  if (over === null) return;
  byId("result").textContent = RESULTS.get(over.score);
  byId("ruling").replaceChildren(element("b", "", table.guesses ? "Referee: " : "Ruling: "), `${over.outcome}; ${over.reason}.`);
  show("looks", game.looksBack);
  const known = game.turns.filter((turn) => turn.known !== undefined);
  byId("known").replaceChildren(...(known.length ? [showKnown(known)] : []));
  show("legend", game.turns.some((turn) => turn.lengths));
  show("decided", over.span !== null);
  show("keeping", game.mayKeep);
  byId("keep").checked = byId("keep").disabled = game.isKept;
  byId("keep-says").textContent = game.isKept ? "This game is kept. Thank you." : "This game may be kept for research";
  if (before?.id !== game.id || before.over === null) {
    byId("over").focus({ preventScroll: true });
    byId("over").scrollIntoView({ block: "nearest" });
  }
}

function showKnown(known) {
  const made = knownCurve(known.map((turn) => turn.known));
  const whose = game.seat === 1 ? "Had the model sat in your seat" : "What the model could have known";
  made.querySelector("figcaption").textContent = `${whose}: probability of \u201c${game.scenario}\u201d, had it guessed at each turn`;
  return made;
}

async function begin() {
  try {
    table = await ask("/api/table");
  } catch (error) {
    tell(error.message);
    return;
  }
  byId("game-name").textContent = table.game;
  byId("title").textContent = table.title;
  byId("lede").textContent = table.guesses
    ? "One player knows a secret word and tries to make the other say it. The other tries to find it out first."
    : `A game of two seats. It ends after at most ${counted(table.maxTurns, "turn")} of each.`;
  const guess = table.maxGuesses > 1 ? `guess at most ${table.maxGuesses} times` : "guess once";
  for (const seat of [0, 1]) {
    byId(`seat-${seat}`).textContent = capital(seatName(seat));
    const begins = table.saysWhoMoves ? "" : seat === 0 ? "You begin." : "The model begins.";
    byId(`seat-${seat}-says`).textContent = table.guesses ? SAYS[seat].replace("guess once", guess) : begins;
  }
  byId("scenario-label").textContent = capital(table.scenario);
  for (const each of document.querySelectorAll("input[name=seat]")) each.addEventListener("change", chooseSeat);
  byId("setup").addEventListener("submit", start);
  byId("speak").addEventListener("submit", speak);
  byId("claim").addEventListener("click", beginClaim);
  byId("again").addEventListener("click", () => step("again"));
  byId("keep").addEventListener("change", async () => {
    if (!(await step("keep"))) byId("keep").checked = false;
  });
  byId("next").addEventListener("click", showSetup);
  chooseSeat();
  let id = null;
  try {
    id = sessionStorage.getItem(KEPT);
  } catch {
    // nothing is kept
  }
  const state = id ? await ask(`/api/games/${id}`).catch(() => null) : null;
  if (state) update(state);
  else showSetup();
  document.documentElement.dataset.ready = "";
}

begin();
