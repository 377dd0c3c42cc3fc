// Requests at intervals, and whether the lab answers.

const MAX_ABSENT = 10; // intervals off the page: Gradio may attach an element late, or move it

// Call `update` every `ms` while the element is visible; less often after failures, and immediately when the browser
// tab is shown again. Returns a function that calls it now.
export function poll(element, update, ms) {
  let failures = 0;
  let absent = 0;
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
  const onVisibility = () => {
    if (!document.hidden) pollNow();
  };
  const observer = new IntersectionObserver((entries) => {
    if (entries.some((e) => e.isIntersecting)) pollNow();
  });
  function loop() {
    absent = document.body.contains(element) ? 0 : absent + 1;
    if (absent > MAX_ABSENT) {
      document.removeEventListener('visibilitychange', onVisibility);
      observer.disconnect();
      return;
    }
    pollNow().finally(() => {
      setTimeout(loop, ms * Math.min(8, 2 ** failures));
    });
  }
  document.addEventListener('visibilitychange', onVisibility);
  observer.observe(element);
  loop();
  return pollNow;
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
