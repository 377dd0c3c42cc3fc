// Inside another site's frame a browser may refuse storage, and Gradio asks for it without looking: then it lasts for the visit.
for (const name of ['localStorage', 'sessionStorage']) {
  try { window[name].length; } catch (error) {
    const kept = new Map();
    Object.defineProperty(window, name, { value: {
      getItem: (key) => kept.get(String(key)) ?? null, setItem: (key, value) => { kept.set(String(key), String(value)); },
      removeItem: (key) => { kept.delete(String(key)); }, clear: () => kept.clear(), key: (i) => [...kept.keys()][i] ?? null,
      get length() { return kept.size; } } });
  }
}
