"""Writes rlhf_lab/ui/api_types.d.ts: the payloads and replies of the page's requests as types `lab.NAME` for tsc.

python tests/javascript/generate_types.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from rlhf_lab.ui.page import APIS
from rlhf_lab.ui.shared.api import Api, Endpoint

TYPES = Path(__file__).resolve().parents[2] / "rlhf_lab" / "ui" / "api_types.d.ts"
HEADER = (
    "// Generated from the payloads and replies of the page's requests: python tests/javascript/generate_types.py\n"
)
READ = """
interface Read<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
  ifChanged(payload?: Payload): Promise<Reply | null>;
}
interface Action<Payload, Reply> {
  (payload?: Payload, timeoutMs?: number): Promise<Reply>;
}
"""
PRIMITIVES = {"string": "string", "boolean": "boolean", "null": "null"}


def type_of(schema: dict[str, Any], numbers: str = "number") -> str:
    """A JSON schema as a TypeScript type. numbers: the type of numbers, which a payload may contain as typed."""
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(f"'{value}'" if isinstance(value, str) else str(value).lower() for value in values)
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(type_of(option, numbers) for option in options))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"[{', '.join(type_of(item, numbers) for item in schema['prefixItems'])}]"
        return f"Array<{type_of(schema.get('items', {}), numbers)}>"
    if schema.get("type") == "object":
        if "properties" in schema:
            return fields_of(schema, numbers)
        values = schema.get("additionalProperties")
        return f"Record<string, {type_of(values, numbers) if isinstance(values, dict) else 'any'}>"
    if schema.get("type") in ("integer", "number"):
        return numbers
    return PRIMITIVES.get(schema.get("type", ""), "any")


def fields_of(schema: dict[str, Any], numbers: str) -> str:
    required = schema.get("required", ())
    fields = (
        f"{name}{'' if name in required else '?'}: {type_of(item, numbers)}"
        for name, item in schema["properties"].items()
    )
    return "{ " + "; ".join(fields) + " }"


def types_of(apis: tuple[Api, ...]) -> str:
    """An interface for the requests of each screen, Screens by name of the screen, and the types that they use, each once."""
    types: dict[str, str] = {}

    def use(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> str:
        schema = adapter.json_schema(mode=mode)
        numbers = "number | string" if mode == "validation" else "number"
        named = schema.pop("$defs", {})
        if schema.get("title") and schema.get("type") == "object" and "properties" in schema:
            named = named | {schema["title"]: schema}
            schema = {"$ref": schema["title"]}
        for name, definition in named.items():
            text = type_of(definition, numbers)
            if types.setdefault(name, text) != text:
                raise ValueError(f"Two types have the name {name}; rename one.")
        return type_of(schema, numbers)

    def signature(endpoint: Endpoint[Any, Any]) -> str:
        payload = use(TypeAdapter(endpoint.payload), "validation")
        kind = "Read" if endpoint.is_read else "Action"
        return f"  {endpoint.path.split('/')[1]}: {kind}<{payload}, {use(TypeAdapter(endpoint.reply_type), 'serialization')}>;"

    names = {api.screen: "".join(map(str.capitalize, api.screen.split("_"))) + "Requests" for api in apis}
    screens = "\n".join(f"  {screen}: {name};" for screen, name in names.items())
    interfaces = [f"interface Screens {{\n{screens}\n}}\n"]
    for api in apis:
        signatures = "\n".join(map(signature, api.endpoints.values()))
        interfaces.append(f"interface {names[api.screen]} {{\n{signatures}\n}}\n")
    return "\n".join([*interfaces, *(f"type {name} = {text};" for name, text in sorted(types.items()))])


def generated() -> str:
    return f"{HEADER}declare namespace lab {{{READ}\n{types_of(APIS)}\n}}\n"


if __name__ == "__main__":
    TYPES.write_text(generated(), encoding="utf-8")
