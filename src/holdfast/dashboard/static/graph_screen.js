// The graph of operators and what they are doing now.
import { html, useState } from "/static/vendor/htm-preact.js";
import { Card, Empty, Legend, Table } from "/static/parts.js";
import { amount, count, share, short, size, span } from "/static/words.js";

const load = (busy) => (busy === null ? "var(--line)" : busy < 0.5 ? "var(--good)" : busy < 0.8 ? "var(--warn)" : "var(--bad)");
const NAMES = { source: "source", stateless: "operator", stateful: "stateful operator", stream: "p-stream", sink: "sink", side: "side output" };

const cut = (text) => (text.length > 24 ? `${text.slice(0, 23)}…` : text);
function figures(op) {
  if (op.node.kind === "stream") return op.held_rows === null ? "" : `holds ${amount(op.held_rows)} rows`;
  if (op.node.kind === "stateful") return op.state_rows === null ? "" : `${amount(op.state_rows)} rows · ${size(op.state_bytes)}`;
  if (op.node.kind === "source") return op.lag_rows === null ? "" : `lag ${amount(op.lag_rows)} ${op.lag_rows === 1 ? "row" : "rows"}`;
  return cut((op.node.text[0] || "").replace(/^(sink|source), ?/, ""));
}

export function Graph({ view, pipeline }) {
  const [chosen, setChosen] = useState(null);
  const { drawing, operators } = view.graph;
  if (!operators.length) return html`<${Card}><${Empty} title="The graph is not known yet">It is recorded when this version starts the pipeline.<//><//>`;
  const by = Object.fromEntries(operators.map((op) => [op.node.name, op]));
  const running = view.row.state === "running" && view.row.recent.rows > 0;
  const op = by[chosen] || operators.find((o) => o.node.kind === "stateful") || operators[0];
  return html`<div class="grid">
    <${Card} title="Operators and p-streams" note=${`${view.row.fragments.length} ${view.row.fragments.length === 1 ? "fragment" : "fragments"}; rates of the last ten seconds`}>
      <div class="graph"><svg style=${`max-width:${drawing.width * 1.15}px`} viewBox=${`0 0 ${drawing.width} ${drawing.height}`} role="group" aria-label="graph of operators">
        ${drawing.edges.map((e) => html`<path class="edge ${running ? "flow" : ""}" d=${e.path} />`)}
        ${drawing.nodes.map((n) => { const o = by[n.name]; return html`<g class="node ${o.waiting ? "waiting" : ""} ${op.node.name === n.name ? "chosen" : ""}" transform=${`translate(${n.x},${n.y})`} tabindex="0" role="button" aria-label=${`${n.name}, ${NAMES[o.node.kind]}`}
            onClick=${() => setChosen(n.name)} onKeyDown=${(e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), setChosen(n.name))}>
          <rect class="body" width=${n.width} height=${n.height} rx=${o.node.kind === "stream" ? 26 : 10} />
          <text class="kind" x="16" y="20">${NAMES[o.node.kind]}</text><text class="name" x="16" y="39">${n.name.length > 20 ? n.name.slice(0, 19) + "…" : n.name}</text>
          <text class="fig" x="16" y="57">${figures(o)}</text>
          ${o.rows !== null && html`<text class="fig" x=${n.width - 16} y="20" text-anchor="end">${amount(o.rows)}/s</text>`}
          ${o.busy !== null && html`<rect class="track" x="16" y="67" width=${n.width - 32} height="5" rx="2.5" /><rect class="load" x="16" y="67" width=${Math.max(4, Math.min(1, o.busy) * (n.width - 32))} height="5" rx="2.5" style=${`fill:${load(o.busy)}`}><title>${share(o.busy)} of a CPU</title></rect>`}
        </g>`; })}
      </svg></div>
    <//>
    <${Card} wide="w6" title=${op.node.name} note=${NAMES[op.node.kind]}>
      <dl class="facts">
        <dt>does</dt><dd>${op.node.text.map((line) => html`<div>${line}</div>`)}</dd>
        <dt>fragment</dt><dd>${short(op.node.fragment, pipeline)}</dd>
        ${op.rows !== null && html`<dt>rows</dt><dd>${count(op.rows)} per second</dd>`}
        ${op.busy !== null && html`<dt>busy</dt><dd>${share(op.busy)} of a CPU, its busiest ${op.node.kind === "source" ? "task" : "partition"}</dd>`}
        ${op.node.kind === "source" && html`<dt>lag</dt><dd>${op.lag_rows === null ? "the source does not say" : `${count(op.lag_rows)} rows, ${span(op.lag_seconds)}`}</dd><dt>event time</dt><dd>${op.event_delay === null ? "–" : `${span(op.event_delay)} behind the clock`}</dd>`}
        ${op.state_rows !== null && html`<dt>state</dt><dd>${count(op.state_rows)} rows, ${size(op.state_bytes)}</dd>`}
        ${op.held_rows !== null && html`<dt>holds</dt><dd>${count(op.held_rows)} rows, ${size(op.held_bytes)}</dd>`}
        <dt>back-pressure</dt><dd>${op.waiting || "none in the last ten seconds"}</dd>
      </dl>
    <//>
    <${Card} wide="w6" title=${op.node.kind === "stream" ? "Readers" : op.node.kind === "source" ? "Reading tasks" : "Partitions"}>
      ${op.node.kind === "stream" ? html`<${Table} columns=${[{ name: "reader" }, { name: "behind", kind: "r" }]} rows=${op.readers.map((r) => ({ key: r.reader, cells: [r.reader, `${count(r.behind)} rows`] }))} empty=${html`<${Empty} title="Nothing reads it" />`} />`
        : html`<${Partitions} parts=${op.partitions} />`}
    <//></div>`;
}

export function Partitions({ parts }) {
  const rows = parts.reduce((sum, [, n]) => sum + n, 0) || 1, most = Math.max(1e-9, ...parts.map(([cpu]) => cpu));
  return html`<${Table} columns=${[{ name: "number" }, { name: "rows", kind: "r" }, { name: "share", kind: "r" }, { name: "CPU of the last ten seconds" }]}
    rows=${parts.map(([cpu, n], number) => ({ key: number, cells: [number, count(n), share(n / rows), html`<div class="meter" title=${span(cpu)}><i style=${`width:${(100 * cpu) / most}%`}></i></div>`] }))}
    empty=${html`<${Empty} title="Nothing was done in the last ten seconds" />`} />`;
}
