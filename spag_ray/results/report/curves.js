// Any curve of the run, or of several runs over each other: smoothed, over steps or hours, on a linear or logarithmic axis.

const DASHES = ["solid", "dash", "dot", "dashdot"];
const COLOURS = 4; // --series-1 to --series-4

const curves = {
  runs: [], // {name, curves: {name: [axis, x, seconds, values]}}
  hidden: new Set(), // names of runs

  async start() {
    byId("curve-form").addEventListener("input", () => this.draw());
    byId("curve-form").addEventListener("submit", (event) => event.preventDefault());
    const isLive = document.documentElement.dataset.run !== undefined;
    this.take(isLive ? await (await fetch("api/curves")).json() : await unpack("curve-data"));
  },

  /** The runs as they are now. */
  take(runs) {
    this.runs = runs;
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.curves)))].sort();
    const select = byId("curve-name");
    const before = select.value || names.find((name) => name.startsWith("step/loss/self_play")) || names.find((name) => name.startsWith("step/loss")) || names[0];
    const groups = new Map();
    for (const name of names) {
      const kind = name.split("/")[0];
      if (!groups.has(kind)) groups.set(kind, Object.assign(element("optgroup"), { label: kind }));
      groups.get(kind).append(new Option(name, name, false, name === before));
    }
    select.replaceChildren(...groups.values());
    this.choices();
    this.draw();
  },

  /** A box for each run, if there are several. */
  choices() {
    byId("curve-runs").hidden = this.runs.length < 2;
    const made = this.runs.map((run, place) => {
      const label = element("label");
      const box = Object.assign(element("input"), { type: "checkbox", checked: !this.hidden.has(run.name) });
      box.addEventListener("change", () => {
        this.hidden[box.checked ? "delete" : "add"](run.name);
        this.draw();
      });
      const colour = element("i");
      colour.style.background = `var(${this.style(place).color})`;
      if (this.style(place).dash !== "solid") colour.style.opacity = 0.6;
      label.append(box, " ", colour, run.name);
      return label;
    });
    byId("curve-runs").replaceChildren(...made);
  },

  style: (place) => ({ color: `--series-${1 + (place % COLOURS)}`, dash: DASHES[Math.floor(place / COLOURS) % DASHES.length] }),

  draw() {
    const name = byId("curve-name").value;
    const over = Number(byId("curve-axis").value);
    const weight = Number(byId("curve-smooth").value);
    const data = [];
    let axis = "";
    this.runs.forEach((run, place) => {
      const curve = run.curves[name];
      if (!curve || this.hidden.has(run.name)) return;
      axis = curve[0];
      const x = over === 2 ? curve[2].map((seconds) => seconds / 3600) : axis === "seconds" ? curve[2] : curve[1];
      const line = (y, more) => ({
        type: "scatter",
        mode: x.length > 1 ? "lines" : "markers",
        name: escaped(run.name),
        x,
        y,
        line: { ...this.style(place), width: 1.75 },
        marker: { color: this.style(place).color },
        ...more,
      });
      if (weight > 0) data.push(line(curve[3], { opacity: 0.3, hoverinfo: "skip", name: `${escaped(run.name)}, not smoothed` }));
      data.push(line(weight > 0 ? smoothed(curve[3], weight) : curve[3], { hovertemplate: "%{y:.5g}" }));
    });
    const title = byId("curve-title");
    (title.firstChild ?? title.appendChild(document.createTextNode(""))).textContent = data.length ? `${name} ` : "No curve: nothing is measured, or no run is chosen. ";
    byId("plot-curve").setAttribute("aria-label", `${name}, ${counted(data.length, "line")}`);
    const titles = { optimiser_step: "optimiser step", version: "version", seconds: "seconds" };
    charts.put("curve", {
      data,
      layout: {
        height: 320,
        xaxis: { title: { text: over === 2 ? "hours" : (titles[axis] ?? "") } },
        yaxis: { type: byId("curve-log").checked ? "log" : "linear" },
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
