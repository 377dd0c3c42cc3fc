"""What a Python source imports, whatever the form: for tests of who may know whom."""

import ast
from pathlib import Path


def package_of(path: Path, root: Path) -> str:
    """The dotted package that a file below root belongs to; for __init__.py its own."""
    return ".".join(path.relative_to(root).parent.parts)


def imports(source: str, package: str) -> set[str]:
    """Every dotted name that a module of `package` imports, relative ones made absolute, `import_module("...")` among them."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = absolute("." * node.level + (node.module or ""), package)
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            name = next(iter((*node.args, *(word.value for word in node.keywords if word.arg == "name"))), None)
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(absolute(name.value, package))
    return found


def absolute(name: str, package: str) -> str:
    """`name` as a module of `package` means it: each dot before it but the first goes a package up."""
    bare = name.lstrip(".")
    if bare == name:
        return name
    parts = package.split(".")
    above = parts[: len(parts) - (len(name) - len(bare)) + 1]
    return ".".join([*above, *([bare] if bare else [])])


def called(node: ast.Call) -> str:
    """The last name of what is called: import_module of importlib.import_module(...)."""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def touches(found: set[str], module: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in found)
