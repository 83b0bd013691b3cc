// The frame: which screen is shown, live news, the theme, and keys.
import { html, render, useEffect, useState } from "/static/vendor/htm-preact.js";
import { Card, Empty, Pill, Problem, Spark, Table, useData, token } from "/static/parts.js";
import { Graph } from "/static/graph_screen.js";
import { Drill } from "/static/drill_screen.js";
import { Epochs, Events, Guarantee, Hosts, Overview, Recovery, RowsScreen, Scaling, State, Upgrade, WhatIf } from "/static/screens.js";
import { ago, amount, count, money, size, span } from "/static/words.js";

const SCREENS = [["overview", "Overview", Overview], ["graph", "Graph", Graph], ["epochs", "Epochs", Epochs], ["guarantee", "Guarantee", Guarantee], ["recovery", "Recovery", Recovery], ["state", "State", State], ["scaling", "Scaling", Scaling], ["hosts", "Hosts", Hosts], ["rows", "Rows", RowsScreen], ["what-if", "What if", WhatIf], ["drill", "Drill", Drill], ["events", "Events", Events], ["upgrade", "Upgrade", Upgrade]];
const SPANS = [["5 min", 300], ["30 min", 1800], ["3 h", 10800], ["24 h", 86400]];

function keepToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) { sessionStorage.setItem("holdfast-token", given); history.replaceState(null, "", "#/"); }
}
function place() {
  const [, pipeline, screen] = location.hash.replace(/^#/, "").match(/^\/p\/([^/]+)(?:\/([^/]+))?/) || [];
  return { pipeline: pipeline ? decodeURIComponent(pipeline) : null, screen: screen || "overview" };
}
const link = (pipeline, screen) => `#/p/${encodeURIComponent(pipeline)}/${screen}`;

function Fleet({ news }) {
  if (!news.pipelines.length) return html`<${Card}><${Empty} title="No pipeline has run in this store yet">Run one with <code>holdfast run FILE --store ${news.store}</code>, and it will show up here.<//><//>`;
  return html`<${Card} title="Pipelines" note=${news.store}>
    <${Table} columns=${[{ name: "pipeline" }, { name: "state" }, { name: "rows in, last minute" }, { name: "rows/s", kind: "r" }, { name: "epoch", kind: "r" }, { name: "lag", kind: "r" }, { name: "state", kind: "r" }, { name: "guarantee" }, { name: "cost/h", kind: "r" }, { name: "last error", kind: "wrap" }]}
      rows=${news.pipelines.map((row) => ({ key: row.pipeline, cells: [
        html`<a class="name" href=${link(row.pipeline, "overview")}>${row.pipeline}</a><div class="small faint">${row.state === "running" ? `since ${span(news.now - (row.started_at || news.now))}` : `last commit ${ago(row.committed_at, news.now)}`}${row.hosts.length ? `, hosts ${row.hosts.join(", ")}` : ""}</div>`,
        html`<${Pill} state=${row.state} />`, html`<${Spark} values=${row.spark} label="rows of the last minute" />`, amount(row.recent.rows), html`${span(row.recent.p50)}<div class="small faint">p99 ${span(row.recent.p99)}</div>`,
        html`${row.lag_rows === null ? "–" : amount(row.lag_rows)}<div class="small faint">${row.lag_seconds === null ? "" : span(row.lag_seconds)}</div>`, html`${size(row.state_bytes)}<div class="small faint">${amount(row.state_rows)} rows</div>`,
        html`<a href=${link(row.pipeline, "guarantee")}><${Pill} state=${row.guarantee.state} title=${row.guarantee.text} /></a>`, money(row.cost_per_hour),
        row.error ? html`<span title=${row.error.text}>${row.error.text.split("\n")[0].slice(0, 90)}</span><div class="small faint">${ago(row.error.at, news.now)}${row.error.over ? ", over" : ""}</div>` : html`<span class="faint">none</span>`] }))} /><//>`;
}

function Pipeline({ where, beat, seconds, setSeconds }) {
  const { data: view, error } = useData(`/api/pipelines/${encodeURIComponent(where.pipeline)}`, beat);
  const curves = where.screen === "overview" || where.screen === "epochs";
  const { data: series } = useData(curves ? `/api/pipelines/${encodeURIComponent(where.pipeline)}/series?seconds=${seconds}` : null, seconds > 4000 ? Math.floor(beat / 10) : beat);
  const [, title, Screen] = SCREENS.find(([name]) => name === where.screen) || SCREENS[0];
  if (error) return html`<${Problem} text=${error} />`;
  if (!view) return html`<p class="boot">reading the store</p>`;
  return html`<div class="top"><h1>${where.pipeline}</h1><${Pill} state=${view.row.state} />
      ${view.row.guarantee.state !== "none" && html`<a href=${link(where.pipeline, "guarantee")}><${Pill} state=${view.row.guarantee.state} label=${`guarantee ${view.row.guarantee.state}`} title=${view.row.guarantee.text} /></a>`}
      <span class="soft small wide">epoch ${count(view.row.epoch)}, committed ${ago(view.row.committed_at, view.now)}</span><span class="grow"></span>
      ${curves && html`<span class="seg" role="group" aria-label="time span">${SPANS.map(([name, s]) => html`<button aria-pressed=${s === seconds} onClick=${() => setSeconds(s)}>${name}</button>`)}</span>`}</div>
    <h2 class="hidden">${title}</h2><${Screen} view=${view} series=${series} pipeline=${where.pipeline} beat=${beat} />`;
}

function App() {
  const [news, setNews] = useState(null), [live, setLive] = useState(false), [beat, setBeat] = useState(0), [where, setWhere] = useState(place()), [seconds, setSeconds] = useState(300), [problem, setProblem] = useState(null);
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);
  useEffect(() => {
    const moved = () => { keepToken(); setWhere(place()); scrollTo(0, 0); };
    addEventListener("hashchange", moved);
    const stream = new EventSource(`/api/live${token() ? `?token=${encodeURIComponent(token())}` : ""}`);
    stream.addEventListener("overview", (e) => { setNews(JSON.parse(e.data)); setLive(true); setProblem(null); setBeat((n) => n + 1); });
    stream.onerror = () => { setLive(false); setProblem(token() ? "no connection to the server" : "no connection to the server, or the token is missing: open the link that holdfast ui printed"); };
    return () => { stream.close(); removeEventListener("hashchange", moved); };
  }, []);
  useEffect(() => {
    const pressed = (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey || /INPUT|SELECT|TEXTAREA/.test(e.target.tagName)) return;
      const number = "1234567890-=u".indexOf(e.key);
      if (e.key === "f") location.hash = "#/";
      else if (number >= 0 && where.pipeline && SCREENS[number]) location.hash = link(where.pipeline, SCREENS[number][0]);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [where]);
  useEffect(() => { document.title = where.pipeline ? `${where.pipeline} · ${where.screen} · Holdfast` : "Holdfast"; }, [where]);
  const turn = () => { const next = theme === "dark" ? "light" : "dark"; localStorage.setItem("holdfast-theme", next); document.documentElement.dataset.theme = next; setTheme(next); };
  const names = news ? news.pipelines.map((row) => row.pipeline) : [];
  return html`<a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>skip to the content</a>
  <div class="frame"><div class="side"><a class="brand" href="#/"><img src="/static/mark.svg" alt="" />Holdfast</a>
      <nav class="nav fleet" aria-label="fleet"><a href="#/" aria-current=${where.pipeline ? undefined : "page"}>Fleet<span class="count">${names.length || ""}</span></a>
      ${!where.pipeline && names.map((name) => html`<a href=${link(name, "overview")}>${name}</a>`)}</nav>
      ${where.pipeline && html`<nav class="nav" aria-label=${where.pipeline}><div class="head" title=${where.pipeline}>${where.pipeline}</div>${SCREENS.map(([name, title]) => html`<a key=${name} href=${link(where.pipeline, name)} aria-current=${where.screen === name ? "page" : undefined}>${title}</a>`)}</nav>`}
      <div class="foot"><span class="live ${live ? "" : "off"}" role="status"><i></i>${live ? "live" : "not connected"}</span><span class="faint small where">${news ? news.version : ""}</span><button class="plain" onClick=${turn} aria-label="switch between light and dark">${theme === "dark" ? "Light" : "Dark"}</button></div></div>
    <main class="main" id="main" tabindex="-1">${problem && !live && html`<div style="margin-bottom:1rem"><${Problem} text=${problem} /></div>`}
      ${where.pipeline ? html`<${Pipeline} key=${where.pipeline} where=${where} beat=${beat} seconds=${seconds} setSeconds=${setSeconds} />` : !news ? html`<p class="boot">reading the store</p>` : html`<div class="top"><h1>Fleet</h1></div><div class="grid"><${Fleet} news=${news} /></div>`}</main></div>`;
}

document.documentElement.dataset.theme = localStorage.getItem("holdfast-theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
keepToken();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
