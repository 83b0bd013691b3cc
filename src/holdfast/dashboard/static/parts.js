// Parts that several screens are made of.
import { html, useEffect, useRef, useState } from "/static/vendor/htm-preact.js";
import { amount, size, span, tone, moment } from "/static/words.js";

export const PHASES = ["wait", "read", "exchange", "assemble", "sync", "commit", "publish"];
export const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
export const colour = (number) => `var(${COLOURS[number % COLOURS.length]})`;
export const phaseColour = (name) => colour(Math.max(0, PHASES.indexOf(name)));

export const Pill = ({ state, title, label }) => html`<span class="pill ${tone(state)}" title=${title || ""}>${label || state}</span>`;
export const Tile = ({ label, value, unit, note }) => html`<div class="tile"><div class="label">${label}</div>
  <div class="value">${value}${unit && html` <small>${unit}</small>`}</div>${note && html`<div class="note">${note}</div>`}</div>`;
export const Card = ({ title, note, wide, children, actions }) => html`<section class="card ${wide || "w12"}">
  ${(title || actions) && html`<header><h2>${title}</h2>${note && html`<span class="soft">${note}</span>`}<span style="flex:1"></span>${actions}</header>`}
  ${children}</section>`;
export const Empty = ({ title, children }) => html`<div class="empty"><b>${title}</b>${children}</div>`;
export const Problem = ({ text }) => html`<div class="problem" role="alert">${text}</div>`;

export function Table({ columns, rows, empty }) {
  if (!rows.length) return empty;
  return html`<div class="scroll"><table><thead><tr>${columns.map((c) => html`<th scope="col" class=${c.kind || ""}>${c.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.chosen ? "chosen" : ""}>${row.cells.map((cell, n) => html`<td class=${columns[n].kind || ""}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

export function Spark({ values, label }) {
  const top = Math.max(1, ...values), step = 100 / (values.length - 1);
  const points = values.map((v, n) => `${(n * step).toFixed(2)},${(30 - 27 * (v / top)).toFixed(2)}`);
  return html`<svg class="spark" viewBox="0 0 100 31" preserveAspectRatio="none" role="img" aria-label=${label}>
    <path class="area" d=${`M0,31 L${points.join(" L")} L100,31 Z`} /><path d=${`M${points.join(" L")}`} /></svg>`;
}

export const Sentences = ({ items, empty }) => (items.length ? html`<ul class="sentences">${items.map((item) => html`<li key=${item.at + item.text}>
    <time datetime=${new Date(item.at * 1000).toISOString()}>${moment(item.at)}</time>${item.tag && html`<span class="tag ${item.tone || ""}">${item.tag}</span> `}${item.text}</li>`)}</ul>` : empty);

export function Phases({ phases, total, label }) {
  const sum = total || Object.values(phases).reduce((a, b) => a + b, 0) || 1;
  const names = Object.keys(phases);
  return html`<div class="bar" role="img" aria-label=${`${label || ""} ${names.map((n) => `${n} ${span(phases[n])}`).join(", ")}`}>
    ${names.map((name, n) => html`<i title=${`${name} ${span(phases[name])}`} style=${`width:${(100 * phases[name]) / sum}%;background:${PHASES.includes(name) ? phaseColour(name) : colour(n)}`}></i>`)}</div>`;
}
export const Legend = ({ names }) => html`<div class="legend">${names.map((name, n) => html`<span><i style=${`background:${PHASES.includes(name) ? phaseColour(name) : colour(n)}`}></i>${name}</span>`)}</div>`;

const KINDS = {
  rows: { values: (u, ticks) => ticks.map((v) => amount(v)), show: (v) => `${amount(v)}` },
  bytes: { values: (u, ticks) => ticks.map((v) => size(v)), show: (v) => size(v) },
  seconds: { values: (u, ticks) => ticks.map((v) => span(v)), show: (v) => span(v) },
};

// A chart that is kept while its data changes. `curves` are [name, values]; `stacked` puts them on top of one another.
export function Chart({ at, curves, kind, marks, height, stacked, label }) {
  const place = useRef(null), plot = useRef(null), marked = useRef([]);
  marked.current = marks || [];
  const key = curves.map(([name]) => name).join("|") + kind + document.documentElement.dataset.theme;
  const data = () => {
    if (!stacked) return [at, ...curves.map(([, values]) => values)];
    const sums = at.map(() => 0);
    const layers = curves.map(([, values]) => values.map((v, n) => (v === null ? null : (sums[n] += v))));
    return [at, ...layers];
  };
  useEffect(() => {
    const style = getComputedStyle(document.documentElement), paint = (name) => style.getPropertyValue(name).trim();
    const way = KINDS[kind];
    const axis = { stroke: paint("--soft"), grid: { stroke: paint("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const series = curves.map(([name], n) => {
      const ink = paint(COLOURS[(stacked ? PHASES.indexOf(name) : n) % COLOURS.length] || "--c1");
      return { label: name, stroke: ink, width: stacked ? 1 : 1.8, fill: stacked ? ink + "cc" : n === 0 && curves.length === 1 ? ink + "22" : undefined, points: { show: false }, spanGaps: false,
        value: (u, v, s, i) => (v === null || v === undefined ? "–" : way.show(stacked && i !== null && s > 1 && u.data[s - 1][i] !== null ? v - u.data[s - 1][i] : v)) };
    });
    const opts = { width: place.current.clientWidth, height: height || 200, legend: { live: true }, cursor: { y: false },
      scales: { x: { time: true }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.12 : 1] } },
      axes: [{ ...axis, values: (u, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false })), space: 90, size: 30 }, { ...axis, values: way.values, size: 66 }],
      series: [{ label: "time", value: (u, v) => (v ? moment(v) : "–") }, ...(stacked ? series : series)],
      bands: stacked ? series.slice(1).map((_, n) => ({ series: [n + 2, n + 1] })) : [],
      hooks: { draw: [(u) => {
        let last = null, level = 0; const told = {};
        for (const [when, what] of [...marked.current].reverse()) {
          const x = u.valToPos(when, "x", true);
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width || (last && last[1] === what && x - last[0] < 12)) continue;
          level = last && x - last[0] < 76 * devicePixelRatio ? (x - told[what] < 76 * devicePixelRatio ? level : level + 1) : 0;
          last = [x, what];
          const right = x + 70 * devicePixelRatio > u.bbox.left + u.bbox.width;
          u.ctx.save(); u.ctx.strokeStyle = paint(what === "error" || what === "gap" ? "--bad" : what === "recovery" || what === "takeover" ? "--warn" : "--faint"); u.ctx.setLineDash([3, 4]); u.ctx.beginPath(); u.ctx.moveTo(x, u.bbox.top); u.ctx.lineTo(x, u.bbox.top + u.bbox.height); u.ctx.stroke();
          u.ctx.setLineDash([]); u.ctx.fillStyle = paint("--soft"); u.ctx.font = `${11 * devicePixelRatio}px system-ui`; u.ctx.textAlign = right ? "right" : "left"; if (!(x - told[what] < 76 * devicePixelRatio)) { told[what] = x; } else { u.ctx.restore(); continue; } u.ctx.fillText(what, x + (right ? -4 : 4), u.bbox.top + (11 + 13 * level) * devicePixelRatio); u.ctx.restore();
        } }] } };
    plot.current = new uPlot(opts, data(), place.current);
    const watch = new ResizeObserver(() => place.current && plot.current.setSize({ width: place.current.clientWidth, height: height || 190 }));
    watch.observe(place.current);
    return () => { watch.disconnect(); plot.current.destroy(); };
  }, [key]);
  useEffect(() => { if (plot.current) plot.current.setData(data()); }, [at, curves]);
  return html`<div class="chart" ref=${place} role="img" aria-label=${label || curves.map(([name]) => name).join(", ")}></div>`;
}

export const token = () => sessionStorage.getItem("holdfast-token") || "";
export async function ask(path, options) {
  const headers = { ...(options?.headers || {}) };
  if (token()) headers.authorization = `Bearer ${token()}`;
  const answer = await fetch(path, { ...options, headers });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || `the server answered ${answer.status}`);
  return body;
}
const PATIENCE = 10;
// What a path answers, asked again whenever `beat` changes; what was there stays until the new answer comes.
export function useData(path, beat) {
  const [found, setFound] = useState({ path: null, data: null, error: null });
  const asked = useRef(null);
  useEffect(() => {
    const waits = asked.current && asked.current.path === path && beat - asked.current.beat < PATIENCE;
    if (!path || waits) return; // a slow server is not asked again, and its answer counts
    const mine = asked.current = { path, beat };
    const answered = (answer) => { if (asked.current === mine) { asked.current = null; setFound({ path, ...answer }); } };
    ask(path).then((data) => answered({ data, error: null }), (error) => answered({ data: null, error: error.message }));
  }, [path, beat]);
  useEffect(() => () => { asked.current = null; }, []);
  return found.path === path ? found : { data: null, error: null };
}
