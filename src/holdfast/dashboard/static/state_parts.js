// Pictures of partitions, levels and schemes.
import { html } from "/static/vendor/htm-preact.js";
import { Card, colour, Table } from "/static/parts.js";
import { count, share, size, span } from "/static/words.js";

// The levels of each table: how many places a reader looks into, and what a merge would rewrite.
export function Levels({ state, name }) {
  const lines = state.parts.flatMap((part, n) => Object.entries(part.levels).map(([table, bytes]) => ({ n, table, bytes, sum: bytes.reduce((a, b) => a + b, 0) })));
  const most = Math.max(1, ...lines.map((line) => line.sum));
  if (!lines.length) return "";
  return html`<${Card} title="Levels" note="oldest first; those of similar size are merged, and a reader looks into each">
    <${Table} columns=${[{ name: "partition", kind: "r" }, { name: "table" }, { name: "levels", kind: "r" }, { name: "size", kind: "r" }, { name: "" }]}
      rows=${lines.slice(0, 64).map((line) => ({ key: `${line.n} ${line.table}`, cells: [String(line.n), line.table, count(line.bytes.length), size(line.sum),
        html`<div class="bar" style="min-width:12rem" role="img" aria-label=${`levels of ${name}, partition ${line.n}: ${line.bytes.map(size).join(", ")}`}>${line.bytes.map((bytes, n) => html`<i title=${size(bytes)} style=${`width:${(100 * bytes) / most}%;background:${colour(n)}`}></i>`)}</div>`] }))} /><//>`;
}

// The key space from 0 to 1: which part of it each partition has, as dark as it is busy.
export function KeySpace({ parts, loads, name }) {
  if (!parts.length) return "";
  const most = Math.max(1e-9, ...loads.map((load) => load.cpu)), busy = (n) => (loads[n] ? loads[n].cpu / most : 0);
  const percent = (v) => `${(100 * v).toFixed(v === 0 || v === 1 ? 0 : 1)} %`;
  return html`<div style="margin-top:0.8rem"><div class="small soft">which part of the key space each partition has, darker where it is busier</div>
    <div class="keyspace" role="img" aria-label=${`key space of ${name}: ${parts.map((part, n) => `partition ${n} from ${percent(part.begin)} to ${percent(part.end)}`).join(", ")}`}>
      ${parts.map((part, n) => html`<i title=${`partition ${n}: ${percent(part.begin)} to ${percent(part.end)}, ${share(busy(n))} of the busiest`} style=${`width:${100 * (part.end - part.begin)}%`}><b style=${`opacity:${0.15 + 0.85 * busy(n)}`}></b><span>${parts.length <= 16 ? n : ""}</span></i>`)}</div>
    <div class="ends small faint"><span>0 %</span><span>100 %</span></div></div>`;
}

// The six schemes, from the slowest to the fastest recovery; a change goes step by step.
export function Wheel({ steps, status }) {
  const { scheme, predicted, decisions } = status.replicas, last = decisions[decisions.length - 1];
  return html`<ol class="wheel">${steps.map((step) => html`<li key=${step.scheme} aria-current=${step.scheme === scheme ? "step" : undefined}><b>${step.scheme}</b><span class="soft small">${step.summary}</span><span class="num">${predicted[step.scheme] === undefined ? "–" : span(predicted[step.scheme])}</span></li>`)}</ol>
    <p class="small soft" style="margin-top:0.5rem">Predicted is the gap in the output if the primary failed now.${last ? ` Last decision: ${last.reason}.` : ""}</p>`;
}
