// Follows the feed of one stream for as long as it is wanted, through restarts of the centre and of the network.
//
// The browser itself comes back after a lost connection and says how far it got (Last-Event-ID). Where it gives up, or
// a connection is silent though the centre speaks every second, a new one is made here, from the step that is due.

const SILENCE_MS = 5000;
const LONGEST_WAIT_MS = 5000;

export function follow(stream, { nextStep, onOpen, onLost, onPoint, onStatus }) {
  let source = null;
  let silence = 0;
  let retry = 0;
  let wait = 250;

  function connect() {
    const start = nextStep();
    const query = start > 1 ? `?start=${start}` : "";
    source = new EventSource(`/v1/streams/${encodeURIComponent(stream)}/feed${query}`);
    source.onopen = () => { wait = 250; listen(); onOpen(); };
    source.onerror = () => {
      onLost();
      if (source.readyState === EventSource.CLOSED) again();
    };
    source.onmessage = (event) => { listen(); onPoint(JSON.parse(event.data)); };
    source.addEventListener("status", (event) => { listen(); onStatus(JSON.parse(event.data)); });
    listen();
  }

  function listen() {
    clearTimeout(silence);
    silence = setTimeout(() => { onLost(); again(); }, SILENCE_MS);
  }

  function again() {
    close();
    retry = setTimeout(connect, wait);
    wait = Math.min(2 * wait, LONGEST_WAIT_MS);
  }

  function close() {
    clearTimeout(silence);
    clearTimeout(retry);
    source.close();
  }

  connect();
  return { close };
}
