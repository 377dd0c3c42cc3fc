"""The event handlers of a screen, as Gradio calls them."""

import asyncio

import gradio as gr


def event_handlers(screen, ctx):
    """{(id of the element, event): handler} of a screen on a separate page."""

    async def build():  # in a loop that asyncio.run closes; Gradio would not close its own
        with gr.Blocks(analytics_enabled=False) as page:
            screen.build(ctx, gr.BrowserState(""))
        return page

    page = asyncio.run(build())
    return {
        (getattr(page.blocks.get(component_id), "elem_id", None), event): function.fn
        for function in page.fns.values()
        for component_id, event in function.targets
    }
