"""The requests of a screen, as the page sends them."""

import functools
import json
from types import SimpleNamespace

from rlhf_lab.ui.shared.api import Requests


def requests_of(ctx, api):
    """The requests of a screen by name, as the page sends them: each takes a payload and returns the reply, or the error as
    {"error", "field"}. `revision`: that of the reply which the page already has."""
    requests = Requests(ctx, [api])

    def send(endpoint, payload=None, revision=""):
        answer = json.loads(requests.answer(endpoint, payload or {}, revision))
        return answer.get("reply", answer)

    return SimpleNamespace(**{name: functools.partial(send, endpoint) for name, endpoint in api.endpoints.items()})
