// The only script that is no module: it stands in the page's HTML and runs before Gradio's scripts.

// In another site's frame a browser may refuse storage, which Gradio uses unchecked: replace it by memory.
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

// The clock of Gradio's progress display draws at 60 frames a second, for ever once the page's own "Loading" is gone:
// 5 % of a core. Once a second is enough, for the lab shows no such clock.
(() => {
  const nextFrame = window.requestAnimationFrame.bind(window);
  const isProgressClock = (callback) =>
    callback.length === 0 && /performance\.now\(\).*\/\s*1(e3|000)\b/.test(Function.prototype.toString.call(callback));
  window.requestAnimationFrame = (callback) =>
    isProgressClock(callback) ? setTimeout(callback, 1000) : nextFrame(callback);
})();
