// Requests to the server.

// Call `update` every `ms` while the element is visible; less often after failures, and immediately when the browser
// tab is shown again. Returns a function that calls it now.
export function poll(element, update, ms) {
  let failures = 0;
  let busy = false;
  const isVisible = () => !document.hidden && element.offsetParent !== null;
  async function pollNow() {
    if (busy || !isVisible()) return;
    busy = true;
    try {
      await update();
      failures = 0;
    } catch (error) {
      failures += 1;
      if (failures === 3) setOffline(true, error.isReply ? error.message : '');
    } finally {
      busy = false;
    }
    if (failures === 0) setOffline(false);
  }
  function loop() {
    if (!document.body.contains(element)) return;
    pollNow().finally(() => {
      setTimeout(loop, ms * Math.min(8, 2 ** failures));
    });
  }
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden) pollNow();
  });
  new IntersectionObserver((entries) => {
    if (entries.some((e) => e.isIntersecting)) pollNow();
  }).observe(element);
  loop();
  return pollNow;
}

// The reply of a server function. Throws for null (the server failed) and for {error}.
export async function unwrap(promise) {
  const reply = await promise;
  if (reply === null || reply === undefined) throw new Error('no answer');
  if (reply.error) throw Object.assign(new Error(reply.error), { isReply: true });
  return reply;
}

// Events whose replies are awaited. sendEvent(payload) triggers one. Returns {send, receive}: send(action, fields,
// limit) returns a promise of the reply, which is rejected by an {error} or if there is no reply within `limit` ms;
// receive(reply) must be called with every value of the widget.
export function requests(sendEvent) {
  const waiting = new Map(); // request_id -> function that takes the reply
  let lastId = 0;
  function send(action, fields = {}, limit = 60_000) {
    const id = (lastId = Math.max(lastId + 1, Date.now()));
    return new Promise((resolve, reject) => {
      const finish = (settle, value) => {
        clearTimeout(timer);
        waiting.delete(id);
        settle(value);
      };
      const timer = setTimeout(
        () =>
          finish(
            reject,
            new Error(
              'The lab has not answered. It may still be working on this, or the connection was lost. Reload ' +
                'the page and try again.',
            ),
          ),
        limit,
      );
      waiting.set(id, (reply) => (reply.error ? finish(reject, new Error(reply.error)) : finish(resolve, reply)));
      sendEvent({ request_id: id, action, ...fields });
    });
  }
  return { send, receive: (reply) => waiting.get(reply?.request_id)?.(reply) };
}

let wasOffline = false;
// reason: the error message of the lab; '' if it does not reply.
function setOffline(isOffline, reason = '') {
  if (isOffline) document.querySelector('.lab-header')?.toggleAttribute('data-reason', !!reason);
  if (isOffline && reason) document.querySelector('.lab-header').dataset.reason = reason;
  if (isOffline === wasOffline) return;
  wasOffline = isOffline;
  document.body.classList.toggle('lab-offline', isOffline);
}
