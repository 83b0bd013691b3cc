// A drill: what is predicted, the confirmation, what happens, and the reports of earlier drills.
import { html, useState } from "/static/vendor/htm-preact.js";
import { ask, Card, Empty, Problem, Table, token, useData } from "/static/parts.js";
import { amount, count, moment, short, span, tiny } from "/static/words.js";

const Figure = ({ label, value, note }) => html`<div><div class="label">${label}</div><div class="big">${value}</div><div class="soft small">${note}</div></div>`;
const whom = (o) => (o.kill === "host" ? o.what.replace(/ dies$/, "") : "a worker");

export function Drill({ view, pipeline, beat }) {
  const choices = view.what_if.filter((o) => o.kill), bound = view.guarantee.declared.recovery;
  const { data: drills } = useData(`/api/pipelines/${encodeURIComponent(pipeline)}/drills`, beat);
  const [chosen, setChosen] = useState(0), [error, setError] = useState(null), [asked, setAsked] = useState(null);
  const o = choices[Math.min(chosen, choices.length - 1)], last = drills && drills.last;
  const busy = (last && last.code === null) || (asked && !(last && last.since >= asked));
  const begin = () => {
    if (!confirm(`Kill ${whom(o)} of ${short(o.fragment, pipeline)} now, with kill -9?\n\nPredicted: ${span(o.seconds)} until the next commit, ${count(o.rows)} rows run again.`)) return;
    setError(null);
    ask("/api/drill", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ pipeline, fragment: o.fragment, kill: o.kill }) })
      .then((made) => setAsked(made.since), (wrong) => setError(wrong.message));
  };
  if (!o) return html`<${Card}><${Empty} title="Nothing can be drilled yet">The pipeline has not committed an epoch.<//><//>`;
  const stopped = view.row.state !== "running";
  return html`<div class="grid">
    <${Card} title="What is predicted" note="before anything is killed"
        actions=${html`<label class="row small">kill <select aria-label="what to kill" value=${chosen} onChange=${(e) => setChosen(Number(e.target.value))}>${choices.map((c, n) => html`<option value=${n}>${whom(c)} of ${short(c.fragment, pipeline)}</option>`)}</select></label>
          <button class="danger" disabled=${!token() || stopped || busy} title=${token() ? "" : "open the link with the token that holdfast ui printed"} onClick=${begin}>Kill ${whom(o)}</button>`}>
      <div class="promise">
        <${Figure} label="back after" value=${span(o.seconds)} note=${bound === null ? "no bound is declared" : `${span(bound)} are allowed`} />
        <${Figure} label="rows that run again" value=${amount(o.rows)} note=${o.epochs === null ? "" : `${count(o.epochs)} ${o.epochs === 1 ? "epoch" : "epochs"}`} />
        <${Figure} label="costs" value=${tiny(o.cost)} note="CPU of what runs again" />
      </div>
      <p class="small soft" style="margin-top:0.8rem">${o.text}. ${stopped ? "It is not running: there is nothing to kill." : "Nothing is lost and nothing is output twice: that is what the drill checks, by running the epochs again and comparing digests."}</p>
      ${!token() && html`<p class="small soft" style="margin-top:0.4rem">An action needs the token: open the link that <code>holdfast ui</code> printed.</p>`}
      ${error && html`<div style="margin-top:0.8rem"><${Problem} text=${error} /></div>`}
    <//>
    <div class="w12" role="status" aria-live="polite">${last && html`<${Card} title=${last.code === null ? "Under way" : last.code === 0 ? "Passed" : "Failed"} note=${`requested at ${moment(last.since)}`}
        actions=${html`<span class="pill ${last.code === null ? "warn" : last.code === 0 ? "good" : "bad"}">${last.code === null ? "under way" : last.code === 0 ? "passed" : "failed"}</span>`}>
      <ol class="steps">${last.said.map((line, n) => html`<li key=${n}>${line}</li>`)}${last.code === null && !last.said.length ? html`<li>starting</li>` : ""}</ol><//>`}</div>
    <${Card} title="Reports" note="kept in the store, newest first">
      <${Table} columns=${[{ name: "when", kind: "nowrap" }, { name: "killed" }, { name: "in epoch", kind: "r" }, { name: "back after", kind: "r" }, { name: "predicted", kind: "r" }, { name: "ran again", kind: "r" }, { name: "" }, { name: "verdict", kind: "wrap" }]}
        rows=${((drills && drills.reports) || []).map((r) => ({ key: r.at + r.fragment, cells: [moment(r.at), `${r.what} of ${short(r.fragment, pipeline)}`, count(r.epoch), span(r.seconds), span(r.predicted.seconds), `${count(r.rows)} rows`, html`<span class="tag ${r.passed ? "good" : "bad"}">${r.passed ? "passed" : "failed"}</span>`, r.verdict] }))}
        empty=${html`<${Empty} title="No drill yet">Kill something on purpose on a quiet day, rather than find out on a bad one.<//>`} />
    <//></div>`;
}
