"""The module: what it says of checkpoints, and that its stubs are what it has."""

import ast
import pathlib

import pytest

import quantloom
from test_products import FLOATS, GOLDEN, layer_of


def test_a_checkpoint_says_what_it_has():
    checkpoint = quantloom.open(str(GOLDEN / FLOATS[0]))
    assert checkpoint.layers() == ["layer"]
    assert checkpoint.format == "compressed-tensors"
    assert checkpoint.notes == []
    layer = checkpoint.layer("layer")
    assert layer.name == "layer" and "weight: e2m1" in layer.scheme and layer.nbytes > 0
    assert repr(checkpoint) == "<quantloom.Checkpoint: compressed-tensors, 1 layers>"
    assert repr(layer) == f"<quantloom.Layer: layer, CompressedTensors, {list(layer.shape)}>"
    prepared = layer.prepare()
    assert prepared.shape == layer.shape and prepared.scheme == layer.scheme
    assert layer.explain(3) == prepared.explain(3)
    assert prepared.explain(1) and prepared.device in repr(prepared)


def test_devices_are_names_that_prepare_takes():
    names = [name for name, _ in quantloom.devices()]
    assert names[0] == "cpu" and "sim:sm_90a" in names
    layer = layer_of(FLOATS[0])
    for name in ("cpu", "portable", "sim:wgsl"):
        assert name in names
        assert layer.prepare(name).shape == layer.shape


def stubs():
    """The stubs that were installed with the module, or those of the repository."""
    beside = pathlib.Path(quantloom.__file__).parent / "__init__.pyi"
    return ast.parse(beside.read_text())


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_stubs_are_installed_and_name_what_there_is():
    body = stubs().body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    del classes["_SupportsDLPack"]
    (listed,) = (node.value for node in body if isinstance(node, ast.Assign))
    assert set(ast.literal_eval(listed)) == set(quantloom.__all__)
    assert public(classes) | public(functions) | {"__version__"} == set(quantloom.__all__)
    for name, node in classes.items():
        described = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        kind = getattr(quantloom, name)
        if issubclass(kind, Exception):
            continue
        assert public(described) == public(vars(kind)), name
        for member in described:
            assert hasattr(kind, member), f"{name}.{member}"


def words(text):
    return " ".join((text or "").split())


def test_docstrings_are_the_same_in_both():
    def compare(node, there, where):
        assert words(ast.get_docstring(node)) == words(there.__doc__), where

    for node in stubs().body:
        if isinstance(node, ast.FunctionDef):
            compare(node, getattr(quantloom, node.name), node.name)
        if isinstance(node, ast.ClassDef) and node.name != "_SupportsDLPack":
            kind = getattr(quantloom, node.name)
            compare(node, kind, node.name)
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                    compare(member, getattr(kind, member.name), f"{node.name}.{member.name}")


@pytest.mark.parametrize("kind", ["Checkpoint", "Layer", "Prepared", "Tensor"])
def test_objects_are_made_by_the_module_alone(kind):
    with pytest.raises(TypeError):
        getattr(quantloom, kind)()


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_the_programs_of_the_documents_run(page):
    repository = pathlib.Path(__file__).parents[2]
    demo = str(repository / "cli/assets/demo.safetensors")
    blocks = (repository / page).read_text().split("```python\n")[1:]
    assert blocks
    for block in blocks:
        program = block.split("```")[0]
        assert '"model.safetensors"' in program
        names = {}
        exec(program.replace('"model.safetensors"', repr(demo)), names)
        assert names["y"].shape == (4, names["layer"].shape[0])
