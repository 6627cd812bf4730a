// Charts are drawn as they come into view, in the colours of the theme.

const charts = {
  figures: {},
  drawn: new Set(),
  plotly: null,
  seen: null,

  async start() {
    this.seen = new IntersectionObserver((entries) => this.see(entries), { rootMargin: "400px" });
    document.addEventListener("themechange", () => this.drawn.forEach((name) => this.draw(name)));
    this.take(await unpack("figures"));
  },

  /** The figures as they are now. What is drawn is drawn again; the others wait until they come into view. */
  take(figures) {
    const { curve } = this.figures;
    this.figures = { ...figures, ...(curve ? { curve } : {}) };
    for (const name of [...this.drawn]) {
      if (byId(`plot-${name}`) && this.figures[name]) this.draw(name);
      else this.drawn.delete(name);
    }
    for (const name of Object.keys(this.figures)) this.watch(name);
  },

  /** One figure that is made on the page. */
  put(name, figure) {
    this.figures[name] = figure;
    if (this.drawn.has(name)) this.draw(name);
    else this.watch(name);
  },

  watch(name) {
    const plot = byId(`plot-${name}`);
    if (!plot) return;
    if (!this.drawn.has(name)) this.seen.observe(plot);
    const caption = plot.parentElement.querySelector("figcaption");
    if (caption && !caption.querySelector("button")) {
      const button = element("button", "save", "CSV");
      button.type = "button";
      button.title = "Save the chart's data";
      button.setAttribute("aria-label", `Save the data of: ${caption.textContent.trim()}`);
      button.addEventListener("click", () => save(`${name}.csv`, asCsv(rowsOf(this.figures[name])), "text/csv"));
      caption.append(" ", button);
    }
  },

  async see(entries) {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      this.seen.unobserve(entry.target);
      const name = entry.target.id.slice("plot-".length);
      this.plotly ??= this.load();
      await this.plotly;
      await pause();
      if (!byId(`plot-${name}`)) continue; // a renewed page has it no more
      this.drawn.add(name);
      this.draw(name);
    }
  },

  /** The library runs as the script whose hash the page's policy names, or that its server has. */
  async load() {
    const script = document.createElement("script");
    if (isLive()) {
      script.src = "plotly.js";
      document.head.append(script);
      await new Promise((resolve, reject) => {
        script.addEventListener("load", resolve);
        script.addEventListener("error", () => {
          this.plotly = null; // the next chart tries again
          reject(new Error("plotly.js has not come"));
        });
      });
      return;
    }
    script.textContent = await unpackText("plotly");
    await pause();
    document.head.append(script);
  },

  draw(name) {
    const style = getComputedStyle(document.documentElement);
    const { data, layout } = coloured(this.figures[name], style);
    Plotly.react(byId(`plot-${name}`), data, withDefaults(layout, style), { displayModeBar: false, responsive: true });
  },
};

/** A figure's numbers as rows with a heading: of curves and bars x and y, of a heat map each cell. */
function rowsOf({ data }) {
  const rows = [["series", "x", "y", "value"]];
  for (const { name = "", meta = name, x, y, z } of data) {
    if (z) z.forEach((row, i) => row.forEach((value, j) => rows.push([meta, x?.[j] ?? j, y?.[i] ?? i, value])));
    else (x ?? []).forEach((each, place) => rows.push([meta, each, y?.[place], ""]));
  }
  return rows;
}

/** The same with the values of the style sheet in the places of its variables' names. */
function coloured(value, style) {
  if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
  if (Array.isArray(value)) return value.map((each) => coloured(each, style));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, style)]));
}

function withDefaults(layout, style) {
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    gridcolor: colour("--rule"),
    linecolor: colour("--rule-strong"),
    zeroline: false,
    automargin: true,
    fixedrange: true,
    exponentformat: "none",
    tickfont: { color: colour("--muted") },
  };
  const titled = (own = {}) => ({
    ...axis,
    ...own,
    ...(own.title ? { title: { ...own.title, font: { size: 12, color: colour("--muted") }, standoff: 8 } } : {}),
  });
  return {
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: style.getPropertyValue("--sans"), size: 12, color: colour("--ink") },
    margin: { l: 44, r: 20, t: 22, b: 40 },
    dragmode: false, // a finger on a chart scrolls the page
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--rule-strong"), font: { color: colour("--ink") } },
    showlegend: false,
    ...layout,
    xaxis: titled(layout.xaxis),
    yaxis: titled(layout.yaxis),
  };
}
