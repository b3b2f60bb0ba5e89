// The search of a site that is opened from a folder: browsers start no worker on a file:// page, so its script runs in a hidden frame.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inside = frame.contentWindow;
    this.inside.document.open(); // Firefox replaces the first, empty document of a frame unless it is written
    this.inside.document.write("<!doctype html><body></body>");
    this.inside.document.close();
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = this.inside.document.createElement("script");
    this.ready = new Promise((loaded, failed) => Object.assign(script, { onload: loaded, onerror: failed }));
    script.src = url;
    this.inside.document.body.append(script);
  }

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}

window.IFrameWorker = IFrameWorker; // the script looks for this name
if (location.protocol === "file:") window.Worker = IFrameWorker;
