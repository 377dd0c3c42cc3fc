// Requests to the server.
Object.assign(window.Lab, (() => {
  // Call `update` every `ms` while the element is visible: less often after failures, at once when the tab is shown again.
  // Returns a function that calls it now.
  function poll(element, update, ms) {
    let failures = 0, busy = false;
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
      pollNow().finally(() => { setTimeout(loop, ms * Math.min(8, 2 ** failures)); });
    }
    document.addEventListener('visibilitychange', () => { if (!document.hidden) pollNow(); });
    new IntersectionObserver((entries) => { if (entries.some((e) => e.isIntersecting)) pollNow(); }).observe(element);
    loop();
    return pollNow;
  }

  // The reply of a server function. null (the server failed) and {error} become exceptions.
  async function unwrap(promise) {
    const reply = await promise;
    if (reply === null || reply === undefined) throw new Error('no answer');
    if (reply.error) throw Object.assign(new Error(reply.error), { isReply: true });
    return reply;
  }

  let wasOffline = false;
  // reason: what the lab itself says is wrong; '' if it does not reply.
  function setOffline(isOffline, reason = '') {
    if (isOffline) document.querySelector('.lab-header')?.toggleAttribute('data-reason', !!reason);
    if (isOffline && reason) document.querySelector('.lab-header').dataset.reason = reason;
    if (isOffline === wasOffline) return;
    wasOffline = isOffline;
    document.body.classList.toggle('lab-offline', isOffline);
  }

  return { poll, unwrap };
})());
