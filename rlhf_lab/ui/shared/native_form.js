// @ts-check
// The values of the Gradio fields that belong to a widget: Form.send_values_to of forms.py.

/**
 * onChange(settings) is called when a field has changed. Returns a function that promises the present values by name.
 * @param {{ props: any, trigger: (event: string) => void, watch: (name: string, handler: () => void) => void }} widget
 * @param {(settings: Record<string, any>) => void} onChange
 */
export function nativeForm({ props, trigger, watch }, onChange) {
  const waiting = [];
  watch('value', () => {
    if (!props.value?.settings) return;
    if (waiting.length) waiting.splice(0).forEach((resolve) => resolve(props.value.settings));
    else onChange(props.value.settings);
  });
  return () =>
    new Promise((resolve) => {
      waiting.push(resolve);
      trigger('send_values');
    });
}
