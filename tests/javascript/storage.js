// What localStorage and sessionStorage of a browser are, for the tests.
export class Storage {
  items = new Map();
  getItem = (key) => this.items.get(key) ?? null;
  setItem = (key, value) => this.items.set(key, String(value));
  removeItem = (key) => this.items.delete(key);
  key = (i) => [...this.items.keys()][i] ?? null;
  get length() {
    return this.items.size;
  }
}
