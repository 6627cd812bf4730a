// Any curve of the run, or of several runs over each other: smoothed, over steps or hours, on a linear or logarithmic axis.

const DASHES = ["solid", "dash", "dot", "dashdot"];
const COLOURS = 4; // --series-1 to --series-4

const curves = {
  inside: null, // {name, curves} of each run, of a page that has its data inside
  runs: [], // names
  shown: ["", []], // the name of a curve, and [axis, x, seconds, values] or null of each run
  hidden: new Set(), // names of runs
  asked: 0, // counts choices: a curve that comes late does not replace a later one

  async start() {
    byId("curve-form").addEventListener("input", (event) => (event.target.id === "curve-name" ? this.choose() : this.draw()));
    byId("curve-form").addEventListener("submit", (event) => event.preventDefault());
    if (!isLive()) this.inside = await unpack("curve-data");
    await this.renew();
  },

  /** What there is now. */
  async renew() {
    const found = this.inside
      ? { runs: this.inside.map((run) => run.name), names: Object.keys(Object.assign({}, ...this.inside.map((run) => run.curves))).sort() }
      : await (await answerOf("api/curves")).json();
    this.options(found.names);
    if (found.runs.join("\n") !== this.runs.join("\n")) this.boxes(found.runs);
    await this.choose();
  },

  options(names) {
    const select = byId("curve-name");
    if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
    const before = select.value || names.find((name) => name.startsWith("step/loss/self_play")) || names.find((name) => name.startsWith("step/loss")) || names[0];
    const groups = new Map();
    for (const name of names) {
      const kind = name.split("/")[0];
      if (!groups.has(kind)) groups.set(kind, Object.assign(element("optgroup"), { label: kind }));
      groups.get(kind).append(new Option(name, name, false, name === before));
    }
    select.replaceChildren(...groups.values());
  },

  /** A box for each run, if there are several. */
  boxes(runs) {
    this.runs = runs;
    byId("curve-runs").hidden = runs.length < 2;
    const made = runs.map((run, place) => {
      const label = element("label");
      const box = Object.assign(element("input"), { type: "checkbox", checked: !this.hidden.has(run) });
      box.addEventListener("change", () => {
        this.hidden[box.checked ? "delete" : "add"](run);
        this.draw();
      });
      const colour = element("i");
      colour.style.background = `var(${this.style(place).color})`;
      if (this.style(place).dash !== "solid") colour.style.opacity = 0.6;
      label.append(box, " ", colour, run);
      return label;
    });
    byId("curve-runs").replaceChildren(...made);
  },

  async choose() {
    const name = byId("curve-name").value;
    const asked = ++this.asked;
    const of = this.inside
      ? this.inside.map((run) => run.curves[name] ?? null)
      : await (await answerOf(`api/curve?name=${encodeURIComponent(name)}`)).json();
    if (asked !== this.asked) return;
    this.shown = [name, of];
    this.draw();
  },

  style: (place) => ({ color: `--series-${1 + (place % COLOURS)}`, dash: DASHES[Math.floor(place / COLOURS) % DASHES.length] }),

  draw() {
    const [name, of] = this.shown;
    const over = Number(byId("curve-axis").value);
    const weight = Number(byId("curve-smooth").value);
    const isLog = byId("curve-log").checked;
    const data = [];
    let [axis, count, most] = ["", 0, -Infinity];
    of.forEach((curve, place) => {
      const run = this.runs[place];
      if (!curve || this.hidden.has(run)) return;
      axis = curve[0];
      count += 1;
      most = curve[3].reduce((before, value) => Math.max(before, value ?? -Infinity), most);
      const x = over === 2 ? curve[2].map((seconds) => seconds / 3600) : axis === "seconds" ? curve[2] : curve[1];
      const line = (y, more) => ({
        type: "scatter",
        mode: x.length > 1 ? "lines" : "markers",
        name: escaped(run),
        meta: run,
        x,
        y,
        line: { ...this.style(place), width: 1.75 },
        marker: { color: this.style(place).color },
        ...more,
      });
      if (weight > 0) data.push(line(curve[3], { opacity: 0.3, hoverinfo: "skip", meta: `${run}, not smoothed` }));
      data.push(line(weight > 0 ? smoothed(curve[3], weight) : curve[3], { hovertemplate: "%{y:.5g}" }));
    });
    const told = count === 0 ? "No curve: nothing is measured, or no run is chosen." : isLog && most <= 0 ? `${name}: no value above 0` : name;
    const title = byId("curve-title");
    (title.firstChild ?? title.appendChild(document.createTextNode(""))).textContent = `${told} `;
    title.querySelector("button")?.setAttribute("aria-label", `Save the data of: ${name}`);
    byId("plot-curve").setAttribute("aria-label", `${name}, ${counted(count, "run")}`);
    const titles = { optimiser_step: "optimiser step", version: "version", seconds: "seconds" };
    charts.put("curve", {
      data,
      layout: {
        height: 320,
        xaxis: { title: { text: over === 2 ? "hours" : (titles[axis] ?? "") } },
        yaxis: { type: isLog ? "log" : "linear" },
      },
    });
  },
};

/** Names are not read as markup. */
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");

/** The running mean whose weights fall by this factor from value to value. It starts at the first value. */
function smoothed(values, weight) {
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return mean / total;
  });
}
