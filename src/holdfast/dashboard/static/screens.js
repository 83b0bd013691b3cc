// The screens of a pipeline, each a function of what the server says about it.
import { html, useEffect, useState } from "/static/vendor/htm-preact.js";
import { ask, Card, Chart, colour, Empty, Legend, phaseColour, PHASES, Phases, Problem, Sentences, Table, Tile, token, useData } from "/static/parts.js";
import { Partitions } from "/static/graph_screen.js";
import { KeySpace, Levels, Wheel } from "/static/state_parts.js";
import { ago, amount, clock, count, moment, money, share, short, size, span, tiny } from "/static/words.js";

export function Overview({ view, series, pipeline }) {
  const { row } = view;
  return html`${row.error && !row.error.over && html`<div style="margin-bottom:1rem"><${Problem} text=${row.error.text} /></div>`}
  <div class="tiles">
    <${Tile} label="rows in" value=${amount(row.recent.rows)} unit="/s" note=${`${count(row.rows_in)} in all`} />
    <${Tile} label="rows out" value=${amount(row.recent.output_rows)} unit="/s" note=${`${count(row.totals.output || 0)} in all`} />
    <${Tile} label="an epoch takes" value=${span(row.recent.p50)} note=${`p99 ${span(row.recent.p99)}`} />
    <${Tile} label="lag" value=${row.lag_rows === null ? "–" : amount(row.lag_rows)} unit="rows" note=${row.lag_seconds === null ? "" : `${span(row.lag_seconds)} to read`} />
    <${Tile} label="state" value=${size(row.state_bytes)} note=${`${count(row.state_rows)} rows`} />
    <${Tile} label="cost" value=${money(row.cost_per_hour)} unit="/h" note=${`${row.recent.cpus.toFixed(2)} CPUs`} />
  </div>
  ${series && html`<div class="grid">
    <${Card} wide="w6" title="Rows per second"><${Chart} at=${series.at} curves=${[["in", series.rows], ["out", series.output_rows]]} kind="rows" marks=${series.marks} /><//>
    <${Card} wide="w6" title="Latency of epochs" note="the slowest fragment"><${Chart} at=${series.at} curves=${[["p50", series.p50], ["p99", series.p99]]} kind="seconds" marks=${series.marks} /><//>
    <${Card} wide="w6" title="Lag" note="rows that wait in sources and p-streams"><${Chart} at=${series.at} curves=${[["rows", series.lag_rows]]} kind="rows" height=${150} /><//>
    <${Card} wide="w6" title="State"><${Chart} at=${series.at} curves=${[["bytes", series.state_bytes]]} kind="bytes" height=${150} /><//>
    <${Card} title="What happened" note="newest first"><${Sentences} items=${view.events.slice(0, 12).map((e) => ({ at: e.at, tag: e.kind, tone: TONES[e.kind], text: `${e.fragment ? `${short(e.fragment, pipeline)}: ` : ""}${e.text}` }))} empty=${html`<${Empty} title="No events of the last day" />`} /><//>
  </div>`}`;
}
export const TONES = { error: "bad", gap: "bad", recovery: "warn", takeover: "warn", late: "warn", dead: "warn", decision: "accent", started: "good" };

// Where each phase of an epoch begins: they follow one another. Tasks of a phase begin together.
function placed(phases) {
  let at = 0;
  return PHASES.filter((name) => name in phases).map((name) => { const begin = at; at += phases[name]; return { name, begin, seconds: phases[name] }; });
}
const Piece = ({ begin, seconds, total, name, label }) => html`<i title=${`${label} ${span(seconds)}`} style=${`left:${(100 * begin) / total}%;width:${Math.max(0.3, (100 * seconds) / total)}%;background:${phaseColour(name)}`}></i>`;

function Waterfall({ trace }) {
  const parts = placed(trace.phases), total = Math.max(1e-9, parts.reduce((sum, p) => sum + p.seconds, 0));
  const by = Object.fromEntries(parts.map((p) => [p.name, p])), stages = [...new Set(trace.tasks.map(([stage]) => stage))].sort((a, b) => a - b);
  const lanes = [{ label: "epoch", note: span(total), pieces: parts.map((p) => ({ ...p, label: p.name })) }];
  let offset = 0;
  for (const stage of stages) {
    const own = trace.tasks.filter(([at]) => at === stage), name = stage === 0 ? "read" : "assemble", begin = (by[name] ? by[name].begin : 0) + (stage === 0 ? 0 : offset);
    for (const [, task, seconds, syncing] of own) {
      const works = Math.max(0, seconds - syncing), pieces = [{ name, begin, seconds: works, label: name }];
      if (syncing > 0) pieces.push({ name: "sync", begin: Math.max(begin + works, by.sync ? by.sync.begin : 0), seconds: syncing, label: "sync" });
      lanes.push({ label: stage === 0 ? `worker ${task} reads` : `worker ${task} stage ${stage}`, note: span(seconds), pieces });
    }
    if (stage > 0) offset += Math.max(0, ...own.map(([, , seconds, syncing]) => seconds - syncing));
  }
  const told = lanes.map((lane) => `${lane.label} ${lane.note}: ${lane.pieces.map((p) => `${p.label} ${span(p.seconds)}`).join(", ")}`).join("; ");
  return html`<div class="waterfall" role="img" aria-label=${told}>${lanes.map((lane, n) => html`<div class="lane ${n ? "" : "whole"}" key=${lane.label}><span class="who">${lane.label}</span><span class="track">${lane.pieces.map((p) => html`<${Piece} ...${p} total=${total} />`)}</span><span class="took">${lane.note}</span></div>`)}</div>`;
}

function Traces({ view, pipeline }) {
  const fragments = Object.keys(view.traces), [fragment, setFragment] = useState(null), [held, setHeld] = useState(null), [at, setAt] = useState(0);
  const shown = fragments.includes(fragment) ? fragment : fragments[0], found = held || view.traces[shown] || [], trace = found[Math.min(at, found.length - 1)];
  if (!trace) return html`<${Card} title="One epoch, by worker"><${Empty} title="No epoch was committed in the last hour" /><//>`;
  const choose = (n) => { setHeld(found); setAt(Math.max(0, Math.min(found.length - 1, n))); };
  return html`<${Card} title="One epoch, by worker" note=${`epoch ${count(trace.epoch)}, ${moment(trace.started)}, ${count(trace.rows)} rows: the slowest of its second`}
    actions=${html`<label class="row small">fragment <select value=${shown} onChange=${(e) => { setFragment(e.target.value); setHeld(null); setAt(0); }}>${fragments.map((f) => html`<option value=${f}>${short(f, pipeline)}</option>`)}</select></label>
      <span class="seg" role="group" aria-label="which epoch"><button onClick=${() => choose(at + 1)} disabled=${at >= found.length - 1}>Earlier</button><button onClick=${() => choose(at - 1)} disabled=${at === 0}>Later</button><button aria-pressed=${!held} onClick=${() => { setHeld(null); setAt(0); }}>Newest</button></span>`}>
    <${Waterfall} trace=${trace} /><div style="margin-top:0.7rem"><${Legend} names=${PHASES} /></div>
    <p class="small soft" style="margin-top:0.5rem">Tasks measure how long they work; they are drawn from the start of their phase, since the clocks of several machines are not compared. Publication comes after the commit.</p><//>`;
}

export function Epochs({ view, series, pipeline }) {
  const statuses = Object.values(view.statuses);
  const slowest = Math.max(1e-9, ...statuses.map((s) => Object.values(s.times || {}).reduce((a, b) => a + b, 0)));
  return html`<div class="grid">
    ${series && html`<${Card} title="Where the time of an epoch goes" note="the mean of each step, one fragment after the other"><${Chart} at=${series.at} curves=${PHASES.filter((n) => series.phases[n]).map((n) => [n, series.phases[n]])} kind="seconds" stacked=${true} height=${230} marks=${series.marks} /><//>`}
    <${Traces} view=${view} pipeline=${pipeline} />
    <${Card} title="Retained epochs, by fragment" note="the mean of what the store retains">
      <${Table} columns=${[{ name: "fragment" }, { name: "last epoch", kind: "r" }, { name: "committed" }, { name: "takes", kind: "r" }, { name: "phases" }, { name: "retained" }, { name: "runs on", kind: "wrap" }]}
        rows=${statuses.map((s) => ({ key: s.pipeline, cells: [short(s.pipeline, pipeline), count(s.epoch), ago(s.committed_at, view.now), span(s.times && Object.values(s.times).reduce((a, b) => a + b, 0)), s.times ? html`<div style="min-width:14rem"><${Phases} phases=${s.times} total=${slowest} label=${s.pipeline} /></div>` : "–", s.retained ? `${count(s.retained[0])} to ${count(s.retained[1])}` : "–", Object.values(s.executors).join("; ")] }))}
        empty=${html`<${Empty} title="Nothing has been committed yet" />`} />
      <${Legend} names=${PHASES} />
    <//>
    ${series && html`<${Card} wide="w6" title="Latency" note="launch to commit"><${Chart} at=${series.at} curves=${[["p50", series.p50], ["p99", series.p99]]} kind="seconds" /><//>
    <${Card} wide="w6" title="Written" note="state and p-streams"><${Chart} at=${series.at} curves=${[["bytes/s", series.written_bytes]]} kind="bytes" /><//>`}
  </div>`;
}

const bound = (g) => (g.declared.recovery === null ? null : g.declared.recovery);
export function Guarantee({ view, pipeline }) {
  const g = view.guarantee, most = Math.max(1e-9, ...g.schemes.map((s) => s.seconds), bound(g) || 0);
  return html`<div class="grid">
    <${Card} title="The guarantee" note=${g.verdict.text}>
      <div class="promise">
        <div><div class="label">declared</div><div class="big">${bound(g) === null ? "no bound" : span(bound(g))}</div><div class="soft small">longest gap after a failure; ${g.declared.delivery === "gap" ? "rows may be left out" : "exactly once"}${g.declared.budget === null ? "" : `; at most ${money(g.declared.budget)}/h`}</div></div>
        <div><div class="label">predicted, if it failed now</div><div class="big">${span(g.predicted ?? worstOutlook(view))}</div><div class="soft small">${g.predicted === null ? "estimated from the last epochs; see What if" : "by the controller of its hosts"}</div></div>
        <div><div class="label">measured, the longest of the last day</div><div class="big">${span(g.worst)}</div><div class="soft small">${g.measured.length ? `${g.measured.filter((m) => m.within !== false).length} of ${g.measured.length} within the bound` : "nothing has failed"}</div></div>
      </div>
    <//>
    ${g.budget && html`<${Card} title="Error budget" note=${`of the last ${span(g.budget.seconds)}: the guarantee should hold ${(100 * g.budget.objective).toFixed(1)} % of the time`} actions=${html`<span class="pill ${g.budget.used > 1 ? "bad" : g.budget.used > 0.5 ? "warn" : "good"}">${g.budget.used > 1 ? "used up" : `${share(1 - g.budget.used)} left`}</span>`}>
      <div class="meter" role="img" aria-label=${`${share(g.budget.used)} of the budget is used`} style="height:0.7rem;margin-bottom:0.6rem"><i class=${g.budget.used > 1 ? "bad" : g.budget.used > 0.5 ? "warn" : ""} style=${`width:${Math.min(100, 100 * g.budget.used)}%`}></i></div>
      <p class="small soft">Kept ${(100 * g.budget.share).toFixed(3)} % of the time: ${g.budget.over} of ${g.budget.recoveries} ${g.budget.recoveries === 1 ? "recovery" : "recoveries"} took longer than ${span(bound(g))}, ${span(g.budget.broken_seconds)} too long in total; ${span((1 - g.budget.objective) * g.budget.seconds)} are in the budget.</p><//>`}
    ${g.schemes.length > 0 && html`<${Card} title="The six schemes" note=${g.schemes[0].assumed ? "assumed, since nothing has been measured yet" : "from what its hosts have measured"}>
      <${Table} columns=${[{ name: "scheme" }, { name: "fragment" }, { name: "gap", kind: "r" }, { name: "" }, { name: "twice the load", kind: "r" }, { name: "per hour", kind: "r" }, { name: "" }, { name: "the secondary", kind: "wrap" }]}
        rows=${g.schemes.map((s) => ({ key: s.fragment + s.scheme, chosen: s.in_use, cells: [html`<b>${s.scheme}</b>`, short(s.fragment, pipeline), span(s.seconds), html`<div class="meter"><i class=${s.within === false ? "bad" : ""} style=${`width:${(100 * s.seconds) / most}%`}></i></div>`, span(s.doubled_seconds), money(s.money), s.in_use ? html`<span class="tag accent">in use</span>` : s.within === false ? html`<span class="tag bad">too slow</span>` : html`<span class="tag">sufficient</span>`, s.summary] }))} /><//>`}
    <${Card} wide="w6" title="How state is made durable">
      <dl class="facts">${Object.entries(g.policies).map(([part, text]) => html`<dt>${short(part, pipeline)}</dt><dd>${text}</dd>`)}</dl>
      ${!Object.keys(g.policies).length && html`<${Empty} title="Nothing has been decided yet" />`}
    <//>
    <${Card} wide="w6" title="Recoveries and gaps" note="of the last day">
      <${Table} columns=${[{ name: "when" }, { name: "what", kind: "wrap" }, { name: "took", kind: "r" }, { name: "" }]} rows=${g.measured.map((m) => ({ key: m.at + m.fragment, cells: [moment(m.at), `${m.what} of ${short(m.fragment, pipeline)}`, span(m.seconds), m.within === null ? "" : m.within ? html`<span class="tag good">kept</span>` : html`<span class="tag bad">broken</span>`] }))} empty=${html`<${Empty} title="Nothing has failed"><a href=${`#/p/${encodeURIComponent(pipeline)}/drill`}>A drill</a> would show what a failure costs.<//>`} />
    <//>
    <${Card} title="Decisions, with their reasons"><${Sentences} items=${g.decisions.map((d) => ({ at: d.at, tag: d.about, tone: "accent", text: html`${d.fragment ? `${short(d.fragment, pipeline)}: ` : ""}<b>${d.to}</b>${d.to ? " — " : ""}${d.reason}` }))} empty=${html`<${Empty} title="Nothing was decided in the last day" />`} /><//>
  </div>`;
}
const worstOutlook = (view) => view.what_if.filter((o) => o.what.endsWith("dies") && o.seconds !== null).reduce((most, o) => (most === null || o.seconds > most ? o.seconds : most), null);

export function Recovery({ view, pipeline }) {
  const most = Math.max(1e-9, ...view.recoveries.map((r) => r.seconds));
  const names = ["progress", "upstream request", "data", "replay"];
  return html`<div class="grid"><${Card} title="Recoveries" note="each by its phases, newest first">
    ${view.recoveries.length ? html`<${Legend} names=${names} />` : ""}
    <${Table} columns=${[{ name: "when" }, { name: "fragment" }, { name: "after epoch", kind: "r" }, { name: "took", kind: "r" }, { name: "phases" }, { name: "restored", kind: "r" }, { name: "run again", kind: "r" }]}
      rows=${view.recoveries.map((r) => ({ key: r.at + r.fragment, cells: [moment(r.at), `${short(r.fragment, pipeline)}${r.host ? ` on ${r.host}` : ""}`, count(r.epoch), span(r.seconds), html`<div style="min-width:13rem"><${Phases} phases=${r.phases} total=${most} label="phases:" /></div>`, `${count(r.units)} p-units, ${size(r.bytes)}`, `${count(r.replayed)} ${r.replayed === 1 ? "epoch" : "epochs"}`] }))}
      empty=${html`<${Empty} title="No recovery in the last day">When a run restarts after a crash, each phase of its recovery is shown here.<//>`} />
  <//>
  <${Card} title="Takeovers by other hosts"><${Sentences} items=${view.takeovers.map((e) => ({ at: e.at, tag: short(e.fragment, pipeline), text: e.text }))} empty=${html`<${Empty} title="No host has taken over" />`} /><//></div>`;
}

export function State({ view, pipeline }) {
  const operators = Object.values(view.statuses).flatMap((s) => Object.entries(s.state).map(([operator, state]) => ({ fragment: s.pipeline, operator, state, retained: s.retained })));
  const [chosen, setChosen] = useState(0), [epoch, setEpoch] = useState(null), [before, setBefore] = useState(null), [search, setSearch] = useState(""), [typed, setTyped] = useState("");
  const op = operators[Math.min(chosen, operators.length - 1)];
  const [held, setHeld] = useState(null);
  useEffect(() => { setHeld(op ? op.retained : null); setEpoch(null); setBefore(null); }, [op && op.operator]);
  const shown = epoch ?? held?.[1];
  const query = new URLSearchParams({ ...(shown ? { epoch: shown } : {}), ...(before ? { before } : {}), ...(search ? { search } : {}), limit: 50 });
  const { data, error } = useData(op && shown ? `/api/state/${op.fragment}/${op.operator}?${query}` : null, 0);
  if (!op) return html`<${Card}><${Empty} title="No operator keeps state">Windows, joins and keyed processes do.<//><//>`;
  return html`<div class="tiles">${operators.map((o, n) => html`<button class="tile" style=${`text-align:left;${n === chosen ? "border-color:var(--accent)" : ""}`} aria-pressed=${n === chosen} onClick=${() => setChosen(n)}><div class="label">${o.operator}</div><div class="value">${size(o.state.bytes)}</div><div class="note">${count(o.state.rows)} rows, ${o.state.partitions} ${o.state.partitions === 1 ? "partition" : "partitions"}</div></button>`)}</div>
  <div class="grid"><${Card} title=${`State of ${op.operator}`} note=${before ? `what changed from epoch ${before} to ${shown}` : `after epoch ${shown ?? "–"}`}
      actions=${html`<button onClick=${() => { setHeld(op.retained); setEpoch(null); setBefore(null); }}>Newest</button>`}>
    ${held && html`<label class="small soft">retained epochs ${held[0]} to ${held[1]}<input type="range" min=${held[0]} max=${held[1]} value=${shown} aria-label="epoch" onChange=${(e) => setEpoch(Number(e.target.value))} /></label>`}
    <div class="row" style="margin:0.4rem 0 0.9rem"><form class="row" onSubmit=${(e) => { e.preventDefault(); setSearch(typed); setBefore(null); }}><input placeholder="country=DE, or any text" aria-label="search" value=${typed} onInput=${(e) => setTyped(e.target.value)} /><button>Search</button></form>
      <label class="row small">difference from <input type="number" style="width:7rem" aria-label="earlier epoch" min=${held?.[0]} max=${held?.[1]} value=${before ?? ""} onChange=${(e) => setBefore(e.target.value || null)} /></label></div>
    ${error && html`<${Problem} text=${error} />`}
    ${data && html`<${Rows} data=${data} empty="No such rows" /><p class="small soft" style="margin-top:0.6rem">${count(data.rows.length)} of ${count(data.total)} rows</p>`}
  <//>
  <${Levels} state=${op.state} name=${op.operator} /></div>`;
}
export const Rows = ({ data, empty }) => html`<${Table} columns=${data.columns.map((name, n) => ({ name, kind: /Int|Float|Decimal/.test(data.types[n]) ? "r" : "" }))} rows=${data.rows.map((row, n) => ({ key: n, cells: row.map((v) => (v === null ? html`<span class="faint">null</span>` : v)) }))} empty=${html`<${Empty} title=${empty} />`} />`;

export function Scaling({ view, pipeline }) {
  const operators = view.graph.operators.filter((o) => o.node.kind === "stateful" || (o.node.kind === "source" && o.partitions.length));
  const [answer, setAnswer] = useState(null), [given, setGiven] = useState({});
  const scale = (op) => {
    const partitions = Number(given[op.node.name]);
    if (!confirm(`Run ${op.node.name} with ${partitions} partitions from the next epoch on?`)) return;
    setAnswer({ text: "requested; the next epoch answers" });
    ask("/api/scale", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ fragment: op.node.fragment, operator: op.node.name, partitions }) })
      .then((made) => setAnswer(made.problem ? { error: made.problem } : { text: `${op.node.name} has ${partitions} partitions from epoch ${made.epoch} on` }), (error) => setAnswer({ error: error.message }));
  };
  return html`<div role="status">${answer && (answer.error ? html`<${Problem} text=${answer.error} />` : html`<p class="card" style="margin-bottom:1rem">${answer.text}</p>`)}</div>
  <div class="grid">${operators.map((op) => html`<${Card} wide="w6" key=${op.node.name} title=${op.node.name} note=${`${op.partitions.length} ${op.node.kind === "source" ? "reading tasks" : "partitions"} of ${short(op.node.fragment, pipeline)}`}
      actions=${html`<form class="row" onSubmit=${(e) => { e.preventDefault(); scale(op); }}><input type="number" min="1" max="1024" style="width:5.5rem" aria-label=${`partitions of ${op.node.name}`} value=${given[op.node.name] ?? op.partitions.length} onInput=${(e) => setGiven({ ...given, [op.node.name]: e.target.value })} /><button disabled=${!token() || view.row.state !== "running"} title=${token() ? "" : "open the link with the token that holdfast ui printed"}>Scale</button></form>`}>
      <${Partitions} parts=${op.partitions} />
      <${KeySpace} parts=${((view.statuses[op.node.fragment] || { state: {} }).state[op.node.name] || { parts: [] }).parts} loads=${op.partitions} name=${op.node.name} />
      ${op.hot.length > 0 && html`<p class="small soft" style="margin-top:0.6rem">keys with most rows: ${op.hot.map(([key, rows]) => html`<span class="tag">${key} ${count(rows)}</span> `)}</p>`}
    <//>`)}
    <${Card} title="Changes and decisions"><${Sentences} items=${view.scaling.map((e) => ({ at: e.at, tag: e.kind, tone: e.kind === "scale" ? "good" : "accent", text: e.text }))} empty=${html`<${Empty} title="Nothing was scaled in the last day">With <code>holdfast run --scale</code> this happens by itself.<//>`} /><//></div>`;
}

export function Hosts({ view, pipeline, beat }) {
  const { data: used } = useData(`/api/pipelines/${encodeURIComponent(pipeline)}/resources`, Math.floor(beat / 2));
  const lone = Object.values(view.statuses).filter((s) => s.owner);
  return html`<div class="grid"><${Card} title="Seats" note="which host runs which fragment, and how the second host is kept">
    <${Table} columns=${[{ name: "host" }, { name: "fragment" }, { name: "seat" }, { name: "scheme" }, { name: "ready for" }, { name: "beats", kind: "r" }]}
      rows=${view.hosts.map((h) => ({ key: h.host + h.fragment, cells: [html`<b>${h.host}</b>`, short(h.fragment, pipeline), h.seat ? html`<span class="tag ${h.seat === "primary" ? "good" : "accent"}">${h.seat}</span>` : html`<span class="tag">spare</span>`, h.scheme, h.ready || "–", count(h.beats)] }))}
      empty=${html`<${Empty} title="No hosts: one process runs it">${lone.length ? html`<code>${[...new Set(lone.map((s) => s.owner))].join(", ")}</code>` : ""} With <code>holdfast up</code> it survives the loss of a host.<//>`} /><//>
    <${Card} title="Resources" note="of the processes on this machine, with all their child processes">
      <${Table} columns=${[{ name: "process" }, { name: "pid", kind: "r" }, { name: "since" }, { name: "CPUs", kind: "r" }, { name: "memory", kind: "r" }, { name: "processes", kind: "r" }, { name: "threads", kind: "r" }]}
        rows=${(used || []).map((r) => ({ key: r.pid, cells: [html`<b>${r.host ? `host ${r.host}` : "the run"}</b>`, String(r.pid), ago(r.since, view.now), r.cpus.toFixed(2), size(r.memory), count(r.processes), count(r.threads)] }))}
        empty=${html`<${Empty} title=${used ? "None of its processes run on this machine" : "looking"} />`} /><//>
    ${Object.values(view.statuses).filter((s) => s.replicas).map((s) => html`<${Card} title=${`The wheel of ${short(s.pipeline, pipeline)}`} note=${s.replicas.text}><${Wheel} steps=${view.wheel} status=${s} /><//>`)}
    <${Card} title="What hosts reported"><${Sentences} items=${view.events.filter((e) => e.kind === "host" || e.kind === "takeover" || e.kind === "gap").map((e) => ({ at: e.at, tag: e.host, text: e.text }))} empty=${html`<${Empty} title="Nothing in the last day" />`} /><//></div>`;
}

export function RowsScreen({ view, pipeline, beat }) {
  const streams = Object.keys(view.streams), [stream, setStream] = useState(streams[0] || null);
  const { data, error } = useData(stream ? `/api/streams/${stream}/tail?limit=30` : null, Math.floor(beat / 3));
  const late = view.row.totals.late || 0, dead = view.row.totals.bad || 0;
  return html`<div class="tiles"><${Tile} label="late rows" value=${count(late)} note="arrived after all their windows had closed" /><${Tile} label="dead rows" value=${count(dead)} note="could not be read or processed" />
    ${view.sources.map((s) => html`<${Tile} label=${`lag of ${s.source}`} value=${amount(s.lag_rows)} unit="rows" note=${s.lag_seconds === null ? short(s.fragment, pipeline) : `${span(s.lag_seconds)} to read`} />`)}</div>
  <div class="grid"><${Card} title="The tail of a p-stream" note="newest first" actions=${streams.length > 1 ? html`<select aria-label="p-stream" onChange=${(e) => setStream(e.target.value)}>${streams.map((s) => html`<option value=${s}>${s}</option>`)}</select>` : html`<span class="soft">${stream || ""}</span>`}>
    ${error && html`<${Problem} text=${error} />`}
    ${data ? html`<${Rows} data=${data} empty="It holds no rows: all of them were read and released" />` : !error && html`<${Empty} title="The pipeline has no p-stream"><code>.persist("name")</code> creates one, and its rows are shown here.<//>`}<//>
    <${Card} title="Late and dead rows over time"><${Sentences} items=${view.lost.map((e) => ({ at: e.at, tag: e.kind, tone: "warn", text: `${short(e.fragment, pipeline)}: ${e.text}` }))} empty=${html`<${Empty} title="None in the last day" />`} /><//></div>`;
}

export function WhatIf({ view, pipeline }) {
  return html`<div class="grid">${view.what_if.map((o) => html`<${Card} wide="w6" key=${o.what + o.fragment} title=${o.what} note=${short(o.fragment, pipeline)} actions=${o.kept === null ? "" : o.kept ? html`<span class="pill good">${o.busy === null ? "guarantee kept" : "keeps up"}</span>` : html`<span class="pill bad">${o.busy === null ? "guarantee broken" : "falls behind"}</span>`}>
    <div class="row" style="gap:2rem;margin-bottom:0.6rem">
      ${o.busy === null || o.seconds !== null ? html`<div><div class="small soft">${o.busy === null ? "back after" : "takeover"}</div><div class="num" style="font-size:1.7rem;font-weight:640;letter-spacing:-0.02em">${span(o.seconds)}</div></div>` : ""}
      ${o.epochs !== null && html`<div><div class="small soft">run again</div><div class="num" style="font-size:1.7rem;font-weight:640;letter-spacing:-0.02em">${count(o.epochs)} <small class="soft" style="font-size:0.9rem;font-weight:450">${o.epochs === 1 ? "epoch" : "epochs"}, ${amount(o.rows)} rows</small></div></div>`}
      ${o.cost !== null && html`<div><div class="small soft">costs</div><div class="num" style="font-size:1.7rem;font-weight:640;letter-spacing:-0.02em">${tiny(o.cost)}</div></div>`}
      ${o.busy !== null && html`<div style="min-width:12rem"><div class="small soft">busiest partition</div><div class="num" style="font-size:1.7rem;font-weight:640;letter-spacing:-0.02em">${share(o.busy)}</div><div class="meter"><i class=${o.busy > 1 ? "bad" : o.busy > 0.8 ? "warn" : ""} style=${`width:${Math.min(100, 100 * o.busy)}%`}></i></div></div>`}
    </div><p class="soft small">${o.text}${o.kill ? html`. <a href=${`#/p/${encodeURIComponent(pipeline)}/drill`}>See it in a drill</a>` : ""}</p><//>`)}
  ${!view.what_if.length && html`<${Card}><${Empty} title="Nothing can be predicted yet">The pipeline has not committed an epoch.<//><//>`}</div>`;
}

export function Events({ pipeline, beat }) {
  const [kind, setKind] = useState("");
  const { data, error } = useData(`/api/events?limit=200&pipeline=${encodeURIComponent(pipeline)}&kind=${kind}`, beat);
  const kinds = ["", "epochs", "checkpoint", "recovery", "takeover", "gap", "decision", "scale", "late", "dead", "notice", "waiting", "error", "host", "action", "drill", "shadow", "started", "ended"];
  return html`<div class="grid"><${Card} title="Events" note="newest first, of the last day" actions=${html`<label class="row small">kind <select value=${kind} onChange=${(e) => setKind(e.target.value)}>${kinds.map((k) => html`<option value=${k}>${k || "all"}</option>`)}</select></label>`}>
    ${error && html`<${Problem} text=${error} />`}
    ${data && html`<${Table} columns=${[{ name: "when", kind: "nowrap" }, { name: "kind" }, { name: "fragment" }, { name: "host" }, { name: "what", kind: "wrap" }]} rows=${data.map((e, n) => ({ key: e.at + e.kind + n, cells: [moment(e.at), html`<span class="tag ${TONES[e.kind] || ""}">${e.kind}</span>`, short(e.fragment, pipeline), e.host, e.text] }))} empty=${html`<${Empty} title="No such events" />`} />`}
  <//></div>`;
}

export function Upgrade({ view }) {
  const [last, ...earlier] = view.shadows;
  const code = (r) => r.code.replace(/:[^:/]*$/, "").replace(/^.*[/]/, "");
  const equal = (r) => Math.min(...Object.values(r.compared), r.wanted);
  if (!last) return html`<${Card}><${Empty} title="No new code has followed it yet"><code>holdfast up --shadow new.py</code> runs new code alongside the hosts, emits nothing, and compares.<//><//>`;
  const r = last.report, state = r.promoted ? "promoted" : r.state;
  return html`<div class="grid"><${Card} title=${code(r)} note=${`since ${moment(r.since)}, alongside ${r.old.replace(/:[^:/]*$/, "").replace(/^.*[/]/, "")}`}
      actions=${html`<span class="pill ${{ equal: "good", promoted: "good", follows: "warn" }[state] || "bad"}">${{ promoted: "has taken over" }[state] || state}</span>`}>
    <p style="overflow-wrap:anywhere">${last.verdict}</p>
    <div class="meter" role="img" aria-label=${`${equal(r)} of ${r.wanted} epochs were equal`} style="height:0.7rem;margin:0.7rem 0"><i class=${r.state === "differs" || r.state === "failed" ? "bad" : ""} style=${`width:${(100 * equal(r)) / r.wanted}%`}></i></div>
    <dl class="facts"><dt>equal epochs</dt><dd>${Object.entries(r.compared).map(([part, n]) => `${count(n)} of ${short(part, r.pipeline)}`).join(", ")}; ${count(r.wanted)} are required</dd>
      <dt>sinks with rows</dt><dd>${Object.entries(r.sinks).map(([sink, n]) => `${sink} in ${count(n)} epochs`).join(", ") || "none"}</dd></dl>
    ${r.only_committed.length + r.only_shadow.length > 0 && html`<h3 style="margin-top:0.9rem">The first rows that differ</h3><${Table} columns=${[{ name: "emitted by" }, { name: "row", kind: "wrap" }]} rows=${[...r.only_committed.map((row) => ["the running code", row]), ...r.only_shadow.map((row) => ["the new code", row])].map((cells, n) => ({ key: n, cells: [cells[0], html`<code>${cells[1]}</code>`] }))} />`}
    ${r.state === "equal" && !r.promoted && html`<p class="small soft" style="margin-top:0.7rem">To let it take over: <code>holdfast promote ${r.pipeline}</code></p>`}
  <//>
  <${Card} title="Earlier ones"><${Sentences} items=${earlier.map((s) => ({ at: s.report.since, tag: code(s.report), text: s.verdict }))} empty=${html`<${Empty} title="None" />`} /><//></div>`;
}
