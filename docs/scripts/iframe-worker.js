// A page that is opened from disk may not start a worker. Then an iframe runs the script of the search, so that it works
// without a server, too. The theme knows this file by its name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inner = this.frame.contentWindow;
      this.inner.postMessage = (data) => setTimeout(() => this.tell(new MessageEvent("message", { data })));
      this.inner.addEventListener("error", (event) => this.tell(new ErrorEvent("error", { message: event.message })));
      const script = this.inner.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => { const waiting = this.waiting; this.waiting = null; waiting.forEach((data) => this.postMessage(data)); };
      this.inner.document.body.append(script);
    }
    tell(event) {
      this.dispatchEvent(event);
      const handler = this[`on${event.type}`];
      if (handler) handler.call(this, event);
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else setTimeout(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
