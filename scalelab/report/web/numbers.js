// The numbers of a chart: short texts, smoothing, one x for all lines, and places for ticks. Used by charts.js.
"use strict";
const numbers = (() => {
  const short = (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-3)) return value.toExponential(2).replace("e+", "e");
    for (const [unit, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (size >= unit) return +(value / unit).toPrecision(3) + name;
    }
    return String(+value.toPrecision(4));
  };


  // An exponential moving average that is unbiased at its start.
  const smooth = (values, weight) => {
    let sum = 0, total = 0;
    return values.map((value) => {
      if (value == null) return null;
      sum = weight * sum + (1 - weight) * value;
      total = weight * total + (1 - weight);
      return sum / total;
    });
  };

  // uPlot wants one x for all lines: the union of theirs; of very many, cells a pixel wide.
  const align = (model) => {
    const { spec, axis, logx, weight } = model;
    const distinct = new Set(spec.series.flatMap((line) => line[axis]));
    const all = [...distinct].filter((x) => !logx || x > 0);
    const [low, high] = all.reduce(([a, b], x) => [Math.min(a, x), Math.max(b, x)], [Infinity, -Infinity]);
    const cells = 800;
    const cell = (x) => {
      if (distinct.size * spec.series.length < 1e6 || high === low) return x;
      const [a, b, at] = logx ? [low, high, x].map(Math.log) : [low, high, x];
      const place = a + Math.round(((at - a) / (b - a)) * cells) * ((b - a) / cells);
      return logx ? Math.exp(place) : place;
    };
    const rows = new Map(); // "x #k": the k-th point of one line at one x
    const entries = spec.series.map((line) => {
      const used = new Map();
      const values = smooth(line.values, weight);
      return line[axis].map((at, index) => {
        if (logx && !(at > 0)) return null;
        const x = cell(at), k = spec.series.length > 200 ? 0 : (used.get(x) ?? 0);
        used.set(x, k + 1);
        if (!rows.has(`${x} ${k}`)) rows.set(`${x} ${k}`, [x, 0]);
        return { key: `${x} ${k}`, value: values[index], index };
      });
    });
    const order = [...rows.values()].sort((a, b) => a[0] - b[0]);
    order.forEach((row, place) => (row[1] = place));
    model.sources = spec.series.map(() => new Map());
    return [order.map((row) => row[0]), ...entries.map((line, i) => {
      const column = new Array(order.length).fill(null);
      for (const entry of line) {
        if (!entry) continue;
        const place = rows.get(entry.key)[1];
        column[place] = entry.value;
        model.sources[i].set(place, entry.index);
      }
      return column;
    })];
  };

  const ticks = (log) => (plot, _, low, high, step) => {
    const places = [];
    if (log) {
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (const digit of [1, 2, 5]) places.push(digit * 10 ** power);
      }
      const inside = places.filter((x) => x >= low && x <= high);
      const whole = inside.filter((x) => Math.abs(Math.log10(x) % 1) < 1e-9);
      if (inside.length > 2) return whole.length > 3 ? whole : inside;
    }
    step = 10 ** Math.floor(Math.log10((high - low) / 4));
    for (const times of [1, 2, 5, 10]) if ((high - low) / (step * times) <= 6) { step *= times; break; }
    return Array.from({ length: 9 }, (_, i) => (Math.ceil(low / step) + i) * step).filter((x) => x <= high);
  };

  return { short, align, ticks };
})();
