// Draws a dashboard in place of the console's page, with the uPlot that the console has.
//
// Takes ([board, times, figures]): a dashboard's JSON, seconds, and by panel id [[name, values]].
async ([board, times, figures]) => {
  const used = document.querySelector('link[href$="vendor/preact.js"]').href;
  const { default: uPlot } = await import(used.replace("preact.js", "uplot.js"));
  const COLOURS = ["#56a64b", "#1f60c4", "#e0752d", "#8f3bb8", "#e02f44", "#2ba6b8", "#b8860b", "#705da0", "#8a8a8a"];
  const steps = (value, base, names) => {
    let at = 0;
    while (Math.abs(value) >= base && at < names.length - 1) [value, at] = [value / base, at + 1];
    return `${+value.toPrecision(3)} ${names[at]}`.trim();
  };
  const seconds = (value) => {
    const [factor, name] = Math.abs(value) >= 1 ? [1, "s"] : Math.abs(value) >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
    return value ? `${+(value * factor).toPrecision(3)} ${name}` : "0 s";
  };
  const UNITS = {
    short: (value) => steps(value, 1000, ["", "K", "M", "G"]),
    bytes: (value) => steps(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]),
    Bps: (value) => steps(value, 1000, ["B/s", "kB/s", "MB/s"]),
    cps: (value) => `${+value.toPrecision(3)} c/s`,
    reqps: (value) => `${+value.toPrecision(3)} req/s`,
    percentunit: (value) => `${+(value * 100).toPrecision(3)} %`,
    s: seconds,
  };
  const POWERS = Array.from({ length: 50 }, (_, at) => 2 ** at);
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    body { display: block; margin: 0; background: #f4f5f5; }
    main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 27px; gap: 8px; padding: 12px;
           width: 1176px; max-width: none; font: 12px sans-serif; color: #24292e; }
    .panel { background: white; border: 1px solid #dcdee1; padding: 6px 8px; overflow: hidden; display: flex; flex-direction: column; }
    .panel h2 { font: bold 12px sans-serif; margin: 0 0 4px; }
    .stat { flex: 1; display: grid; place-items: center; font: bold 26px sans-serif; }
    .plot { flex: 1; min-height: 0; }
    .legend { max-height: 45px; overflow: hidden; font-size: 11px; }
    .legend span { margin-right: 10px; white-space: nowrap; }
    .legend i { display: inline-block; width: 12px; height: 3px; margin: 0 4px 3px 0; }`);
  document.adoptedStyleSheets = [sheet];
  const main = document.createElement("main");
  document.body.replaceChildren(main);
  const put = (where, kind, name, text = "") => {
    const made = document.createElement(kind);
    [made.className, made.textContent] = [name, text];
    return where.appendChild(made);
  };
  for (const panel of board.panels) {
    const { x, y, w, h } = panel.gridPos;
    const { unit, thresholds } = panel.fieldConfig.defaults;
    const [format, found] = [UNITS[unit], figures[panel.id]];
    const box = put(main, "section", "panel");
    box.style.gridArea = `${y + 1} / ${x + 1} / span ${h} / span ${w}`;
    put(box, "h2", "", panel.title);
    if (!found.length) {
      put(box, "div", "stat", "No data").style.color = "#8a8a8a";
    } else if (panel.type === "stat") {
      const value = found[0][1].findLast((one) => one !== null);
      const shown = put(box, "div", "stat", format(value));
      const { color } = thresholds.steps.findLast((step) => step.value === null || value >= step.value);
      shown.style.color = { green: "#37872d", red: "#c4162a" }[color];
    } else {
      const plot = put(box, "div", "plot");
      const legend = put(box, "div", "legend");
      const series = found.map(([name], at) => {
        const stroke = COLOURS[at % COLOURS.length];
        const entry = put(legend, "span", "");
        put(entry, "i", "").style.background = stroke;
        entry.append(name);
        return { label: name, stroke, width: 1.5, points: { show: false } };
      });
      const grid = { stroke: "#e4e5e7", width: 1 };
      new uPlot({
        width: plot.clientWidth, height: plot.clientHeight, legend: { show: false },
        axes: [
          { grid, ticks: { show: false }, values: (_, splits) => splits.map((one) => new Date(one * 1000).toISOString().slice(11, 19)), space: 90 },
          { grid, ticks: { show: false }, size: 76, incrs: unit === "bytes" ? POWERS : undefined, values: (_, splits) => splits.map(format) },
        ],
        scales: { y: { range: (_, low, high) => [Math.min(low, 0), high > 0 ? high * 1.1 : 1] } },
        series: [{}, ...series],
      }, [times, ...found.map(([, values]) => values)], plot);
    }
  }
  await document.fonts.ready;
}
