// Charts, as SVG made here.

const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 4", "12 4"];
const SHAPES = [
  (x, y) => svg("circle", { cx: x, cy: y, r: 3.4 }),
  (x, y) => svg("rect", { x: x - 3.2, y: y - 3.2, width: 6.4, height: 6.4 }),
  (x, y) => svg("path", { d: `M${x} ${y - 4.4}l4 7.4h-8z` }),
  (x, y) => svg("path", { d: `M${x} ${y - 4.6}l4.6 4.6l-4.6 4.6l-4.6-4.6z` }),
  (x, y) => svg("path", { d: `M${x - 4} ${y - 1.2}h8v2.4h-8z` }),
  (x, y) => svg("path", { d: `M${x} ${y + 4.4}l-4-7.4h8z` }),
];

// After six agents colors come again, with another shape and dash.
const shape = (at, x, y) => SHAPES[(at + Math.floor(at / 6)) % 6](x, y);
const dash = (at) => DASHES[(at + Math.floor(at / 6)) % 6];

const seriesMark = (at) =>
  svg(
    "svg",
    { class: `mark s-${at % 6}`, width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" },
    svg("path", { class: "line", d: "M1 6h24", "stroke-dasharray": dash(at) }),
    shape(at, 13, 6),
  );

/** An estimate on a scale from 0 to 1, with its interval. */
const intervalBar = (figure, at, label) => {
  const x = (value) => 4 + value * 112;
  return svg(
    "svg",
    {
      class: `interval s-${at % 6}`,
      width: 120,
      height: 18,
      viewBox: "0 0 120 18",
      role: "img",
      "aria-label": `${label}: ${figure.text}, 95% interval ${figure.range}`,
    },
    svg("path", { class: "axis", d: "M4 9h112M4 5v8M60 7v4M116 5v8" }),
    figure.interval && svg("path", { class: "range", d: `M${x(figure.interval[0])} 9H${x(figure.interval[1])}` }),
    figure.value !== null && shape(at, x(figure.value), 9),
  );
};

/** Shares as one bar: `counts` is [[class, count, label]]. */
const outcomeBar = (counts, total) => {
  let x = 0;
  const said = counts.map(([name, count, label = name]) => `${count} ${label}`).join(", ");
  return svg(
    "svg",
    { class: "outcome-bar", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": said },
    svg("title", null, said),
    counts.map(([name, count]) => {
      const width = (100 * count) / total;
      const bar = svg("rect", {
        class: `f-${name.replace(" ", "-")}`,
        x: x.toFixed(3),
        y: 0,
        width: Math.max(width - 0.4, 0.3).toFixed(3),
        height: 8,
      });
      x += width;
      return bar;
    }),
  );
};

const MOST_BANDS = 3;
const CHART = {
  width: innerWidth < 720 ? 340 : 520,
  height: innerWidth < 720 ? 210 : 250,
  left: 40,
  right: 14,
  top: 12,
  bottom: 34,
};

/** Curves over k: `series` is [[label, points, index]], points as figures with k. */
const kChart = (series, label) => {
  const most = Math.max(1, ...series.flatMap(([, points]) => points.map((point) => point.k)));
  const spread = most > 8 ? Math.log(most) : 0;
  const inner = CHART.width - CHART.left - CHART.right;
  const x = (k) =>
    CHART.left + (most === 1 ? inner / 2 : spread ? (inner * Math.log(k)) / spread : (inner * (k - 1)) / (most - 1));
  const y = (value) => CHART.top + (1 - value) * (CHART.height - CHART.top - CHART.bottom);
  const ticks = spread
    ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].filter((k) => k < most / 1.3).concat(most)
    : Array.from({ length: most }, (_, at) => at + 1);
  return svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": label },
    [0, 0.25, 0.5, 0.75, 1].map((value) => [
      svg("path", { class: "grid", d: `M${CHART.left} ${y(value)}H${CHART.width - CHART.right}` }),
      svg("text", { x: CHART.left - 8, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(2)),
    ]),
    ticks.map((k) => svg("text", { x: x(k), y: CHART.height - 17, "text-anchor": "middle" }, String(k))),
    svg(
      "text",
      { class: "axis-name", x: CHART.width - CHART.right, y: CHART.height - 3, "text-anchor": "end" },
      "k samples",
    ),
    series.length <= MOST_BANDS && series.map(([, points, at]) => band(points, at, x, y)),
    series.map(([name, points, at]) => curve(name, points, at, x, y)),
  );
};

const band = (points, at, x, y) => {
  const known = points.filter((point) => point.interval);
  if (known.length < 2) return null;
  const upper = known.map((point) => `${x(point.k)} ${y(point.interval[1])}`);
  const lower = known.map((point) => `${x(point.k)} ${y(point.interval[0])}`).reverse();
  return svg("path", { class: `band s-${at % 6}`, d: `M${[...upper, ...lower].join("L")}Z` });
};

const curve = (name, points, at, x, y) => {
  const known = points.filter((point) => point.value !== null);
  return svg(
    "g",
    { class: `series s-${at % 6}` },
    known.length > 1 &&
      svg("path", {
        class: "line",
        d: `M${known.map((point) => `${x(point.k)} ${y(point.value)}`).join("L")}`,
        "stroke-dasharray": dash(at),
      }),
    known.map((point) =>
      svg(
        "g",
        { class: point.leftOut ? "hollow" : null },
        shape(at, x(point.k), y(point.value)),
        svg("title", null, `${name}, k = ${point.k}: ${point.text} (${point.range})`),
      ),
    ),
  );
};
