// The Gradio fields that belong to a widget: the counterpart of Form in forms.py.

/**
 * onChange(values) is called with the values by name when one has changed. Returns {values, fill}: values() promises
 * the present ones, and fill(fields) sets properties of fields, such as {steps: {value: '40'}}.
 * @param {{ element: HTMLElement, props: any, trigger: (event: string) => void, watch: any }} widget
 * @param {(values: Record<string, any>) => void} onChange
 */
export function nativeForm({ element, props, trigger, watch }, onChange) {
  const waiting = { send_values: [], fill_fields: [] };
  const settle = (event, value) => waiting[event].splice(0).forEach((resolve) => resolve(value));
  watch('value', () => {
    const { settings, filled } = props.value ?? {};
    if (filled) settle('fill_fields');
    else if (settings && waiting.send_values.length) settle('send_values', settings);
    else if (settings) onChange(settings);
  });
  const request = (event) =>
    new Promise((resolve) => {
      waiting[event].push(resolve);
      trigger(event);
    });
  return {
    values: () => request('send_values'),
    fill: (fields) => {
      /** @type {HTMLElement} */ (element.querySelector('.lab')).dataset.fill = JSON.stringify(fields);
      return request('fill_fields');
    },
  };
}
