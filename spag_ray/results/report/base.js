"use strict";

// Shared by the other scripts: elements, packed data, the theme.

const byId = (id) => document.getElementById(id);

/** An element of a kind and class with a text; texts are never read as HTML. */
function element(kind, className = "", text = "") {
  const made = document.createElement(kind);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** 1 turn, 2 turns. */
const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;

/** Whether a server renews this page, which then has the data. */
const isLive = () => document.documentElement.dataset.run !== undefined;

async function answerOf(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer;
}

/** Packed data, base64 of gzip: of an element of this page; of a live page, of a reading of the run. */
async function packedText(id, stamp) {
  if (!isLive()) return byId(id).textContent;
  const { run, stamp: shown } = document.documentElement.dataset;
  return (await answerOf(`data/${run}/${stamp ?? shown}/${id}`)).text();
}

async function unpackText(id, stamp) {
  const binary = atob(await packedText(id, stamp));
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place); // from() is ten times slower
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const unpack = async (id, stamp) => JSON.parse(await unpackText(id, stamp));

/** Lets the reader keep a text as a file. */
function save(name, text, type) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Rows of values as CSV. */
const asCsv = (rows) =>
  rows.map((row) => row.map((value) => (/[",\r\n]/.test(`${value}`) ? `"${`${value}`.replaceAll('"', '""')}"` : `${value ?? ""}`)).join(",")).join("\r\n") + "\r\n";

/** Lets keys and scrolling come first. */
const pause = () => new Promise((resume) => setTimeout(resume));

const theme = {
  /** A choice of the reader's is kept where the browser allows it. */
  kept() {
    try {
      return localStorage.getItem("spag-theme");
    } catch {
      return null;
    }
  },

  show(name) {
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", name === "dark" ? "Show in light colours" : "Show in dark colours");
    document.dispatchEvent(new Event("themechange"));
  },

  start() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const ofSystem = () => (system.matches ? "dark" : "light");
    this.show(this.kept() ?? ofSystem());
    system.addEventListener("change", () => this.kept() ?? this.show(ofSystem()));
    byId("theme").addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("spag-theme", next);
      } catch {
        // then it is not kept
      }
      this.show(next);
    });
  },
};

theme.start();
