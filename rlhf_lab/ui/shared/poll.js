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
      if (failures >= 3) reasons.clear(); // the others may work again, too
      failures = 0;
      reasons.delete(element);
    } catch (error) {
      failures += 1;
      if (failures >= 3 && error.isReply) reasons.set(element, error.message);
      else reasons.delete(element);
      if (failures === 3) setOffline(true);
    } finally {
      busy = false;
    }
    if (failures === 0) setOffline(false);
    showReason();
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

// Why the lab refuses the repeated requests of an element. The header shows it while the element is on screen, also if
// the lab answers other requests.
const reasons = new Map();
function showReason() {
  for (const element of reasons.keys()) if (!element.isConnected) reasons.delete(element);
  const header = /** @type {HTMLElement | null} */ (document.querySelector('.lab-header'));
  const shown = [...reasons.keys()].find((element) => element.offsetParent !== null);
  if (shown && header) header.dataset.reason = reasons.get(shown);
  else header?.removeAttribute('data-reason');
}

let wasOffline = false;
function setOffline(isOffline) {
  if (isOffline === wasOffline) return;
  wasOffline = isOffline;
  document.body.classList.toggle('lab-offline', isOffline);
}
