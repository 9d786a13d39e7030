// Browsers start no workers from file: addresses. There, the search runs in a hidden frame instead, so that the site also works
// from a directory. The plugin `offline` would load such a script from the internet.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      // A worker answers with postMessage(). In a frame, that must go to the page.
      frame.srcdoc = `<script>window.postMessage = data => parent.postMessage(data, "*")</script><script src="${address}"></script>`
      this.ready = new Promise(resolve => frame.addEventListener("load", () => resolve(frame.contentWindow), { once: true }))
      window.addEventListener("message", event => {
        if (event.source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
      document.documentElement.append(frame)
    }

    postMessage(data) {
      this.ready.then(worker => worker.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
