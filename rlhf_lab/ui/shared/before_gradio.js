// The only script that is not a module: it is part of the page's HTML and runs before Gradio's scripts.

// In a frame of another site a browser may refuse storage, which Gradio uses without a check: replace it by memory.
for (const name of ['localStorage', 'sessionStorage']) {
  try {
    window[name].length;
  } catch (error) {
    const items = new Map();
    const storage = {
      getItem: (key) => items.get(String(key)) ?? null,
      setItem: (key, value) => {
        items.set(String(key), String(value));
      },
      removeItem: (key) => {
        items.delete(String(key));
      },
      clear: () => items.clear(),
      key: (i) => [...items.keys()][i] ?? null,
      get length() {
        return items.size;
      },
    };
    Object.defineProperty(window, name, { value: storage });
  }
}

// Gradio would show pages of its own for some addresses: ?view=settings, ?view=api.
if (new URLSearchParams(location.search).has('view')) {
  history.replaceState(null, '', `${location.pathname}${location.hash}`);
}

// Gradio translates its own words to the language of the browser, and marks the page with it. All other texts are
// English.
for (const [name, value] of Object.entries({ language: 'en', languages: ['en'] })) {
  Object.defineProperty(navigator, name, { value });
}

// The clock of Gradio's progress display is redrawn 60 times a second, even after the page's own "Loading" is gone.
// This takes 5 % of a core. Once a second is enough, because the lab does not show this clock.
(() => {
  const nextFrame = window.requestAnimationFrame.bind(window);
  const isProgressClock = (callback) =>
    callback.length === 0 && /performance\.now\(\).*\/\s*1(e3|000)\b/.test(Function.prototype.toString.call(callback));
  window.requestAnimationFrame = (callback) =>
    isProgressClock(callback) ? setTimeout(callback, 1000) : nextFrame(callback);
})();
