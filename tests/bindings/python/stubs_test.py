"""The stubs have all that the packages export, with the same parameters."""
import ast
import importlib
import inspect
import unittest
from pathlib import Path


def declared(tree):
    """What a stub declares: by name the parameters of a function or method, or None."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            yield node.name, [each.arg for each in arguments.args + arguments.kwonlyargs]
        elif isinstance(node, ast.ClassDef):
            yield node.name, None
            for name, parameters in declared(node):
                yield f"{node.name}.{name}", parameters
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield from ((each.asname, None) for each in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            yield target.id, None


class Stubs(unittest.TestCase):
    def test_exports(self):
        for name in ("guozhuang", "guozhuang.torch"):
            module = importlib.import_module(name)
            tree = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text())
            stubs = dict(declared(tree))
            public = {each for each in stubs if "." not in each and not each.startswith("_")}
            self.assertEqual(public, set(module.__all__))
            for each, parameters in stubs.items():
                if parameters is None or each.startswith("_"):
                    continue
                value = inspect.getattr_static(module, each) if "." not in each else getattr(
                    getattr(module, each.split(".")[0]), each.split(".")[1])
                if isinstance(value, property):
                    continue
                names = [key for key, parameter in inspect.signature(value).parameters.items()
                         if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
                self.assertEqual([key for key in parameters if key != "cls"], names, each)


if __name__ == "__main__":
    unittest.main()
