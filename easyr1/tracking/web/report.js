"use strict";
// The report's curves and sample browser. All data comes from the page's own JSON; text goes in as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);

function el(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function number(value) {
  if (Math.abs(value) >= 999.5 && Math.abs(value) < 1e9) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

// ---- curves

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The value at a step; where the curve has none there, or no step is pointed at, the last one before.
function lastValue(plot, series, index) {
  const values = plot.data[series];
  for (let at = index ?? values.length - 1; at >= 0; at--) if (values[at] !== null) return number(values[at]);
  return "–";
}

// Dashed lines where a phase of learning ends.
function drawMarks(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.strokeStyle = ctx.fillStyle = colour("--quiet");
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  data.marks.forEach(([step, label], row) => {
    const x = Math.round(plot.valToPos(step, "x", true)) + 0.5;
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const right = x > bbox.left + bbox.width * 0.7;
    ctx.textAlign = right ? "right" : "left";
    ctx.fillText(label, x + (right ? -4 : 4) * devicePixelRatio, bbox.top + (11 + 13 * row) * devicePixelRatio);
  });
  ctx.restore();
}

function yRange(plot, low, high) {
  if (low === null) return [0, 1];
  if (low >= 0 && low < high / 2) low = 0;
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low === 0 ? 0 : low - room, high + room];
}

function xRange(plot, low, high) {
  return low === high ? [low - 1, high + 1] : [low, high];
}

function draw(panel, place) {
  const axis = {
    stroke: colour("--quiet"), font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false },
  };
  const curves = panel.curves.map((curve, index) => ({
    label: curve.label, stroke: colour(`--c${index}`), width: 1.75, spanGaps: true, value: (u, _, s, i) => lastValue(u, s, i),
    points: { show: curve.y.filter((value) => value !== null).length <= 40, size: 5, fill: colour(`--c${index}`) },
  }));
  const plot = new uPlot({
    width: place.clientWidth || 380, height: 200, padding: [8, 10, 0, 0],
    scales: { x: { time: false, range: xRange }, y: { range: yRange } },
    axes: [
      { ...axis, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000, 1e5, 1e6] },
      { ...axis, size: 52, values: (u, ticks) => ticks.map(number) },
    ],
    series: [{ label: "step", value: (u, _, s, i) => lastValue(u, s, i) }, ...curves],
    cursor: { sync: { key: "step" }, y: false, drag: { x: true, y: false } },
    legend: { isolate: true, markers: { fill: (u, s) => u.series[s].stroke() } },
    hooks: { drawAxes: [drawMarks] }, // under the curves
  }, [panel.x, ...panel.curves.map((curve) => curve.y)], place);
  plot.root.querySelectorAll(".u-legend th").forEach((head) => { head.title = "show this curve alone, or all again"; });
  return plot;
}

function point(plot, steps, event) {
  const now = plot.cursor.idx ?? steps.length - 1;
  const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: steps.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const at = Math.min(Math.max(moves[event.key], 0), steps.length - 1);
  plot.setCursor({ left: plot.valToPos(steps[at], "x"), top: 0 }, true, true); // on all curves
}

function showCurves(place) {
  const plots = data.panels.map((panel) => {
    const canvas = el("div", { className: "plot", tabIndex: 0 });
    const names = panel.curves.map((curve) => curve.label).join(", ");
    canvas.setAttribute("role", "group");
    canvas.setAttribute("aria-label", `${panel.title} over steps: ${names}. Arrow keys read values.`);
    place.append(el("div", { className: "panel" }, el("h3", {}, panel.title), canvas));
    return { panel, canvas, plot: null };
  });
  const drawAll = () => plots.forEach((one) => {
    one.plot?.destroy();
    one.plot = draw(one.panel, one.canvas);
  });
  drawAll();
  plots.forEach((one) => {
    one.canvas.addEventListener("keydown", (event) => point(one.plot, one.panel.x, event));
    new ResizeObserver(() => one.plot.setSize({ width: one.canvas.clientWidth, height: 200 })).observe(one.canvas);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

// ---- answers

const ALL = "all";
const MATCHES = {
  all: () => true,
  right: (answer) => answer.right === true,
  wrong: (answer) => answer.right === false,
  truncated: (answer) => answer.truncated,
};
const PAGE = 6; // cards shown at a time
const view = { split: data.questions.length ? "val" : "train", which: ALL, step: null, left: null, right: null, shown: PAGE };

function chip(text, look) {
  return el("span", { className: `chip ${look ?? ""}` }, text);
}

function answerOf(answer, name) {
  const chips = [el("b", {}, name)];
  if (answer.right !== null) chips.push(chip(answer.right ? "right" : "wrong", answer.right ? "good" : "bad"));
  if (answer.truncated) chips.push(chip("truncated", "note"));
  if (answer.parsed !== null) chips.push(chip(`answer: ${answer.parsed}`));
  answer.scores.forEach(([score, value]) => chips.push(chip(`${score} ${typeof value === "number" ? number(value) : value}`)));
  if (answer.advantage !== null) {
    const sign = answer.advantage > 0 ? "+" : "";
    chips.push(chip(`advantage ${sign}${number(answer.advantage)}`, answer.advantage > 0 ? "good" : answer.advantage < 0 ? "bad" : ""));
  }
  return el("div", { className: "answer" }, el("p", {}, ...chips), el("pre", {}, answer.text || "(empty)"));
}

function pictureOf(index) {
  if (index === -1) return chip("picture left out, the page would grow too large");
  if (index < 0) return chip("picture is no PNG");
  const image = el("img", { src: `data:image/png;base64,${data.pictures[index]}`, loading: "lazy" });
  image.alt = "picture of the question";
  image.onload = () => {
    image.alt = `${image.naturalWidth} x ${image.naturalHeight} pixels`;
    if (Math.max(image.naturalWidth, image.naturalHeight) < 96) image.className = "small";
  };
  return image;
}

function card(title, item, answers) {
  const pictures = item.pictures.length ? el("div", { className: "pictures" }, ...item.pictures.map(pictureOf)) : null;
  return el("article", { className: "card" },
    el("p", { className: "quiet" }, title),
    el("div", { className: "asked" }, pictures, el("div", {}, el("pre", {}, item.prompt),
      el("p", { className: "truth" }, el("b", {}, "Ground truth "), item.truth))),
    el("div", { className: "answers" }, ...answers));
}

function place(item) {
  return [item.row && `row ${item.row}`, item.source && `of ${item.source}`].filter(Boolean).join(" ");
}

// Validation rows with two of their answers side by side; the filter looks at the later one.
function questionCards() {
  return data.questions.flatMap((item) => {
    const pair = [view.left, view.right].map((step) => item.answers.find((answer) => answer.step === step));
    const later = pair[1] ?? pair[0];
    if (!later || !MATCHES[view.which](later)) return [];
    const shown = [...new Set(pair)].filter(Boolean);
    return [() => card(place(item), item, shown.map((answer) => answerOf(answer, `Step ${answer.step}`)))];
  });
}

// Training prompts with all their answers that pass the filter.
function groupCards() {
  return data.groups.flatMap((item) => {
    const found = item.answers.map((answer, index) => [answer, index]).filter(([answer]) => MATCHES[view.which](answer));
    if (!found.length || (view.step !== ALL && view.step !== item.step)) return [];
    const count = found.length < item.answers.length ? `${found.length} of ${item.answers.length}` : `all ${item.answers.length}`;
    const title = [`Step ${item.step}`, place(item), item.group && `group ${item.group}`, `${count} answers`];
    return [() => card(title.filter(Boolean).join(" · "), item, found.map(([answer, index]) => answerOf(answer, `#${index + 1}`)))];
  });
}

function steps(items) {
  return [...new Set(items)].sort((a, b) => a - b);
}

function select(label, values, current, change) {
  const box = el("select", {}, ...values.map((value) => el("option", { value, selected: value === current }, String(value))));
  box.dataset.value = label;
  box.onchange = () => change(values[box.selectedIndex]);
  return el("label", {}, label, box);
}

function choice(label, values, current, change) {
  const buttons = Object.entries(values).map(([value, text]) => {
    const button = el("button", { type: "button", onclick: () => change(value) }, text);
    button.setAttribute("aria-pressed", String(value === current));
    button.dataset.value = value;
    return button;
  });
  const group = el("span", { className: "choice" }, ...buttons);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", label);
  return group;
}

function showAnswers(where) {
  const validations = steps(data.questions.flatMap((item) => item.answers.map((answer) => answer.step)));
  const trained = steps(data.groups.map((item) => item.step));
  [view.left, view.right] = [validations[0], validations[validations.length - 1]];
  view.step = trained[trained.length - 1];
  const controls = el("div", { className: "controls" });
  const cards = el("div", { className: "cards" });
  where.append(controls, cards);

  const set = (changes) => {
    const focus = document.activeElement?.dataset?.value;
    Object.assign(view, { shown: PAGE }, changes);
    render();
    if (focus) controls.querySelector(`[data-value="${focus}"]`)?.focus();
  };
  const render = () => {
    const isVal = view.split === "val";
    const found = isVal ? questionCards() : groupCards();
    const count = el("span", { className: "count" }, `${found.length} of ${isVal ? data.questions.length : data.groups.length} ${isVal ? "questions" : "groups"}`);
    count.setAttribute("aria-live", "polite");
    controls.replaceChildren(...[
      data.questions.length && data.groups.length
        ? choice("answers of", { val: "Validation", train: "Training groups" }, view.split, (split) => set({ split })) : null,
      choice("show", { all: "all", right: "right", wrong: "wrong", truncated: "truncated" }, view.which, (which) => set({ which })),
      isVal ? select("step", validations, view.left, (left) => set({ left })) : select("step", [ALL, ...trained], view.step, (step) => set({ step })),
      isVal ? select("beside", validations, view.right, (right) => set({ right })) : null,
      count,
    ].filter(Boolean));
    const more = el("button", { type: "button", onclick: () => set({ shown: view.shown + PAGE }) }, "show more");
    cards.replaceChildren(...found.slice(0, view.shown).map((make) => make()));
    if (found.length > view.shown) cards.append(more);
    if (!found.length) cards.append(el("p", { className: "quiet" }, "No logged answer is like that."));
  };
  render();
}

const curves = document.getElementById("curves");
const answers = document.getElementById("answers");
if (curves) showCurves(curves);
if (answers) showAnswers(answers);
document.documentElement.dataset.ready = "yes";
