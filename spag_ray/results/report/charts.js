// Charts are drawn as they come into view, in the colours of the theme.

const charts = {
  figures: {},
  drawn: new Set(),
  plotly: null,

  async start() {
    this.figures = await unpack("figures");
    const seen = new IntersectionObserver((entries) => this.see(entries, seen), { rootMargin: "400px" });
    for (const name of Object.keys(this.figures)) seen.observe(byId(`plot-${name}`));
    document.addEventListener("themechange", () => this.drawn.forEach((name) => this.draw(name)));
  },

  async see(entries, seen) {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      seen.unobserve(entry.target);
      const name = entry.target.id.slice("plot-".length);
      this.plotly ??= this.load();
      await this.plotly;
      await pause();
      this.drawn.add(name);
      this.draw(name);
    }
  },

  /** The library runs as the script whose hash the page's policy names. */
  async load() {
    const script = document.createElement("script");
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
