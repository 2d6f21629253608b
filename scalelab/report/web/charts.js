// Charts that a reader can ask, over the static figures: hover, zoom, smoothing, axes, runs shown and hidden.
// Without this script the page is complete: the figures are SVG.
"use strict";
(() => {
  const AXES = { tokens: "tokens", step: "step", flops: "training FLOPs (exact)", seconds: "seconds since its start" };
  const hidden = new Set(); // names of runs
  const charts = []; // { plot, model } of every chart on the page
  const { short, align, ticks } = numbers;
  let shades = new Map();

  const make = (tag, attributes = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(...children);
    return element;
  };
  const shade = (name) => {
    if (!shades.has(name)) {
      shades.set(name, getComputedStyle(document.documentElement).getPropertyValue(name.slice(4, -1)).trim());
    }
    return shades.get(name);
  };
  const nearest = (plot, model) => {
    const { left, top, idxs } = plot.cursor;
    let best = null, least = 60;
    model.spec.series.forEach((line, i) => {
      const at = idxs?.[i + 1];
      if (at == null || !plot.series[i + 1].show || plot.data[i + 1][at] == null || left < 0) return;
      const away = Math.hypot(plot.valToPos(plot.data[0][at], "x") - left,
        plot.valToPos(plot.data[i + 1][at], "y") - top);
      if (away < least) [least, best] = [away, { line, source: model.sources[i].get(at), value: plot.data[i + 1][at] }];
    });
    return best;
  };

  const say = (plot, model) => {
    const hit = nearest(plot, model);
    if (!hit) return (model.readout.textContent = "Point at a line; drag to zoom, double-click to see all.");
    const { line, source, value } = hit, where = `${short(line[model.axis][source])} ${AXES[model.axis] ?? model.axis}`;
    const raw = model.weight ? `${short(value)} smoothed (${short(line.values[source])})` : +value.toPrecision(6);
    model.readout.textContent = `${[line.names ? line.names[source] : line.run, line.name].filter(Boolean).join(" · ")}: ${raw} at ${where}`;
  };

  const draw = (model) => {
    const { spec, holder, logx, logy } = model;
    model.plot?.destroy();
    const soft = { stroke: () => shade("var(--soft)"), grid: { stroke: () => shade("var(--line)"), width: 1 },
      ticks: { show: false }, values: (_, places) => places.map(short), filter: (_, places) => places, font: "12px system-ui" };
    const span = (low, high, log) => {
      if (low == null) return [log ? 1 : 0, log ? 10 : 1];
      if (log) return [low / (high / low) ** 0.04 / (low === high ? 1.2 : 1), high * (high / low) ** 0.04 * (low === high ? 1.2 : 1)];
      const pad = 0.04 * (high - low) || Math.abs(high) * 0.05 || 1;
      return [low - pad, high + pad];
    };
    const cap = (low, high) => (spec.top && !model.uncapped && high > spec.top && spec.top > low ? spec.top : high);
    model.plot = new uPlot({
      width: holder.clientWidth, height: Math.max(230, Math.min(400, holder.clientWidth * 0.55)),
      legend: { show: false }, focus: { alpha: 0.25 },
      cursor: { focus: { prox: 40 }, hover: { skip: [null, undefined] }, drag: { x: true, y: true, uni: 30 } },
      scales: {
        x: { time: false, distr: logx ? 3 : 1, range: (_, low, high) => span(low, high, logx) },
        y: { distr: logy ? 3 : 1, range: (_, low, high) => span(low, cap(low, high), logy) },
      },
      axes: [{ ...soft, splits: ticks(logx), label: AXES[model.axis] ?? model.axis, labelSize: 22, labelFont: "12px system-ui" },
        { ...soft, splits: ticks(logy), size: 52 }],
      series: [{}, ...spec.series.map((line) => ({
        stroke: () => shade(line.colour), width: line.wide ? 2.6 : 1.4, dash: line.dash ? [6, 4] : undefined, spanGaps: true,
        show: !hidden.has(line.run), points: line.ring ? { show: true, size: 14, width: 2, fill: () => "transparent" }
          : { show: line.points ?? false, size: line.bare ? 8 : 5, fill: () => shade(line.colour) },
        ...(line.bare ? { paths: () => null } : {}),
      }))],
      hooks: { setCursor: [(plot) => say(plot, model)] },
    }, align(model), holder);
    say(model.plot, model);
  };

  const showRuns = () => charts.forEach(({ plot, spec }) => plot.batch(() => {
    spec.series.forEach((line, i) => {
      if (plot.series[i + 1].show === hidden.has(line.run)) plot.setSeries(i + 1, { show: !hidden.has(line.run) });
    });
  }));

  const runList = (spec) => {
    const colours = new Map(spec.series.filter((line) => line.run).map((line) => [line.run, line.colour]));
    if (colours.size < 2) return [];
    const list = make("div", { className: "runs" });
    const filter = make("input", { type: "search", placeholder: "show runs whose name has …", ariaLabel: "filter runs" });
    const paint = () => list.querySelectorAll("button").forEach((b) => b.classList.toggle("off", hidden.has(b.title)));
    const fill = () => list.append(...[...colours].map(([run, colour]) => {
      const button = make("button", { type: "button", title: run, textContent: run });
      button.style.setProperty("--run", colour);
      button.onclick = () => { hidden.delete(run) || hidden.add(run); paint(); showRuns(); };
      return button;
    }));
    filter.oninput = () => {
      for (const run of colours.keys()) run.includes(filter.value) ? hidden.delete(run) : hidden.add(run);
      paint(); showRuns();
    };
    const box = make("details", {}, make("summary", { textContent: `show and hide ${colours.size} runs` }), filter, list);
    box.ontoggle = () => { if (box.open && !list.children.length) fill(); paint(); };
    return [box];
  };

  const keyOf = (spec) => make("div", { className: "key" }, ...spec.key.map(([text, colour, dash]) => {
    const entry = make("span", { textContent: text, className: dash ? "dash" : "" });
    entry.style.setProperty("--run", colour);
    return entry;
  }));

  const tools = (model) => {
    const { spec } = model, row = make("div", { className: "tools" });
    const box = (name, key) => {
      const input = make("input", { type: "checkbox", checked: model[key] });
      input.onchange = () => { model[key] = input.checked; draw(model); };
      row.append(make("label", {}, input, name));
    };
    if (spec.axes.length > 1) {
      const choice = make("select", { ariaLabel: "horizontal axis" });
      choice.append(...spec.axes.map((axis) => make("option", { value: axis, textContent: AXES[axis] ?? axis })));
      choice.onchange = () => { model.axis = choice.value; draw(model); };
      row.append(make("label", {}, "over ", choice));
    }
    box("log x", "logx"), box("log y", "logy");
    if (spec.axes.includes("step")) {
      const slider = make("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, ariaLabel: "smoothing" });
      slider.oninput = () => { model.weight = +slider.value; draw(model); };
      row.append(make("label", {}, "smooth ", slider));
    }
    const all = make("button", { type: "button", textContent: "see all" });
    all.onclick = () => { model.uncapped = true; draw(model); };
    row.append(all);
    return row;
  };

  document.querySelectorAll("script.charts").forEach((source) => {
    const figure = source.parentElement, specs = JSON.parse(source.textContent);
    const asks = make("div", { className: "asks" });
    figure.classList.add("live");
    source.before(asks);
    for (const spec of specs) {
      const holder = make("div", { className: "chart" }), readout = make("div", { className: "readout" });
      const model = { spec, holder, readout, axis: spec.axes[0], logx: spec.logx, logy: spec.logy ?? false, weight: 0 };
      asks.append(make("div", { className: "ask" }, make("b", { textContent: spec.y }), tools(model), holder, keyOf(spec),
        readout, ...runList(spec)));
      charts.push(model);
    }
  });
  // A chart is drawn for the width of its box, which is known once all boxes stand; and again if that width changes.
  const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const model = charts.find(({ holder }) => holder === target);
    if (target.clientWidth && model.plot?.width !== target.clientWidth) draw(model);
  }));
  charts.forEach((model) => { draw(model); widths.observe(model.holder); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    shades = new Map();
    charts.forEach(({ plot }) => plot.redraw());
  });
})();
