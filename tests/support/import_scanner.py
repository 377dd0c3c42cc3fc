"""The names that a Python source imports in any form, for tests of the architecture."""

import ast
from pathlib import Path


def package_of(path: Path, root: Path) -> str:
    """The dotted package of a file below root; of an __init__.py its own."""
    return ".".join(path.relative_to(root).parent.parts)


def imported_names(source: str, package: str) -> set[str]:
    """All dotted names that a module of `package` imports, relative ones made absolute, including `import_module("...")`."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_name("." * node.level + (node.module or ""), package)
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__"):
            name = next(iter((*node.args, *(word.value for word in node.keywords if word.arg == "name"))), None)
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                names.add(_absolute_name(name.value, package))
    return names


def _absolute_name(name: str, package: str) -> str:
    """`name` as imported by a module of `package`: every leading dot after the first goes one package up."""
    bare = name.lstrip(".")
    if bare == name:
        return name
    components = package.split(".")
    parents = components[: len(components) - (len(name) - len(bare)) + 1]
    return ".".join([*parents, *([bare] if bare else [])])


def _called_name(node: ast.Call) -> str:
    """The last name of the called function, e.g. import_module of importlib.import_module(...)."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def imports_module(names: set[str], module: str) -> bool:
    """Whether the module or something in it is among the imported names."""
    return any(name == module or name.startswith(f"{module}.") for name in names)
