// Figures as people read them.
export function amount(value) {
  if (value === null || value === undefined) return "–";
  const units = ["", " k", " M", " G", " T"];
  let place = 0;
  while (Math.abs(value) >= 999.5 && place < 4) { value /= 1000; place += 1; }
  if (place === 0 && Number.isInteger(value)) return String(value);
  return (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1)) + units[place];
}
export const size = (value) => (value === null || value === undefined ? "–" : `${amount(value)}${/[kMGT]$/.test(amount(value)) ? "B" : " B"}`);
export const count = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return `−${span(-seconds)}`;
  if (seconds < 0.001) return seconds === 0 ? "0 s" : `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d`;
}
export const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
export function moment(at) {
  const when = new Date(at * 1000), today = new Date().toDateString() === when.toDateString();
  return today ? clock(at) : `${when.toLocaleDateString([], { month: "short", day: "numeric" })} ${clock(at)}`;
}
export const ago = (at, now) => (!at ? "–" : now - at < 1.5 ? "just now" : `${span(now - at)} ago`);
export const share = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
export const money = (value) => (value === null || value === undefined ? "–" : value < 0.0005 && value > 0 ? "< 0.001" : value.toFixed(3));
export const tiny = (value) => (value === null || value === undefined ? "–" : value === 0 ? "0" : value < 1e-6 ? "< 0.000001" : value.toFixed(6).replace(/0+$/, "").replace(/\.$/, ""));
export const tone = (state) => ({ running: "good", kept: "good", failed: "bad", broken: "bad", "at risk": "warn", finished: "", stopped: "" })[state] ?? "";
export const short = (fragment, pipeline) => (fragment.startsWith(`${pipeline}.`) ? fragment.slice(pipeline.length + 1) : fragment);
