// Browsers start no worker from a file, so search would need a server. Here its worker is a frame that runs the same script.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(address) {
      const waiting = [];
      let deliver = message => waiting.push(message);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow;
        inside.postMessage = answer => { // as from a worker, a copy, and later
          const data = structuredClone(answer);
          setTimeout(() => this.onmessage?.({ data }));
        };
        const script = inside.document.createElement("script");
        script.src = address;
        script.onerror = event => this.onerror?.(event);
        script.onload = () => {
          deliver = data => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
          waiting.forEach(deliver);
        };
        inside.document.head.append(script);
      }, { once: true });
      document.body.append(frame);
      this.postMessage = message => deliver(structuredClone(message));
      this.terminate = () => frame.remove();
    }
  };
}
