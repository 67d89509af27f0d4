// Follows the feed of one stream, through restarts of the centre and lost connections.
//
// The browser itself reconnects after a lost connection and sends the last step that it has (Last-Event-ID). If it gives
// up, or a connection is silent although the centre sends every second, a new one is opened here, from the next step.

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
    source.onopen = () => { wait = 250; restartTimer(); onOpen(); };
    source.onerror = () => {
      onLost();
      if (source.readyState === EventSource.CLOSED) reconnect();
    };
    source.onmessage = (event) => { restartTimer(); onPoint(JSON.parse(event.data)); };
    source.addEventListener("status", (event) => { restartTimer(); onStatus(JSON.parse(event.data)); });
    restartTimer();
  }

  function restartTimer() {
    clearTimeout(silence);
    silence = setTimeout(() => { onLost(); reconnect(); }, SILENCE_MS);
  }

  function reconnect() {
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
