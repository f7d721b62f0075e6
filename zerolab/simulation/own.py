"""Your own model as shapes: from a function, a module, a file of yours, or a Hugging Face configuration.

Nothing is downloaded, and no weight takes memory: a function that runs while shapes are executed builds shapes, and an
existing module is copied as shapes. A file is imported the way Python imports it, so any code outside functions and
outside `if __name__ == "__main__":` runs.
"""

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from zerolab.engines.partition import find_units
from zerolab.names import check_count, check_known, check_type, unknown
from zerolab.recording import patches
from zerolab.simulation.shapes import META

Source = nn.Module | Callable[[], nn.Module]
LENGTH = 2048  # tokens per sequence where nobody says it
FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError)
"""What a model raises that cannot be built or run as it is here."""


class TooLong(ValueError):
    """More tokens in a row than the model has positions."""


@dataclass(frozen=True)
class Own:
    """A model, and one rank's batch for it; `inputs` None stands for tokens of `rows` x `length`.

    `labelled`: the model takes labels and returns its loss, as Hugging Face's do. `note` says what is left out.
    """

    name: str
    source: Source
    inputs: Any = None
    targets: Any = None
    longest: int | None = None
    labelled: bool = False
    note: str | None = None

    def build(self) -> nn.Module:
        """The model as shapes; called where new tensors take no memory.

        Raises TypeError if the function needs arguments or returns something else, ValueError if it needs values.
        """
        if isinstance(self.source, nn.Module):
            return as_shapes(self.source)
        needed = _needed(self.source)
        if needed:
            raise TypeError(
                f"{self.name} needs arguments ({', '.join(needed)}): give a function that takes none and returns the "
                "model, such as lambda: make_model(config)"
            )
        try:
            built = self.source()
        except FAILURES as error:
            raise ValueError(
                f"{self.name} cannot be built on the meta device, where tensors have no values ({first_line(error)}): "
                "build it as usual and pass the module in place of the function; its shapes are copied"
            ) from error
        if not isinstance(built, nn.Module):
            raise TypeError(f"{self.name} returned a {type(built).__name__}, not a torch.nn.Module: return the model")
        return as_shapes(built)

    def batch(self, rows: int | None, length: int | None) -> tuple[Any, Any]:
        """Inputs and targets as shapes, with as many rows and tokens a row as are asked for."""
        if self.inputs is None:
            tokens = torch.zeros(rows or 1, self.length(length), dtype=torch.int64, device=META)
            return ({"input_ids": tokens, "labels": tokens.clone()} if self.labelled else tokens), None
        self.length(length)
        inputs, targets = resized((self.inputs, self.targets), rows, length)
        return inputs, targets

    def rows(self, rows: int | None) -> int:
        """Rows of one rank's batch."""
        return rows or (1 if self.inputs is None else tensors_in(self.inputs)[0].shape[0])

    def length(self, length: int | None) -> int:
        """Tokens of a row, 0 where rows are not of tokens; then it refuses any `length`."""
        length = None if length is None else check_count("length", length)
        if self.inputs is None:
            return length or min(self.longest or LENGTH, LENGTH)
        first = tensors_in(self.inputs)[0]
        tokens = first.shape[1] if first.dim() > 1 and not first.is_floating_point() else 0
        if length and not tokens:
            raise ValueError(
                f"the length is {length}, and rows of {in_words(first)} have no tokens: leave length out, and give "
                "inputs of the size that you mean"
            )
        return length or tokens


def own(model: Source | str | Path, inputs: Any = None, targets: Any = None) -> Own:
    """The model that `model` names: a function, a module, "train.py:make_model", or a configuration's path.

    Raises ValueError for a file, a name in it or a model_type that does not exist, and for inputs without a tensor;
    TypeError for anything else; ImportError for a configuration where transformers is not installed.
    """
    if inputs is not None and not tensors_in(inputs):
        raise ValueError("inputs holds no tensor: give one rank's batch as your loop gives it to the model")
    if isinstance(model, (str, Path)):
        path, colon, name = str(model).partition(":")
        if path.endswith(".py") or colon:
            model = from_file(Path(path), name)
        else:
            found = from_configuration(Path(path))
            return found if inputs is None else replace(found, inputs=inputs, targets=targets, labelled=False)
    if not callable(model):
        raise TypeError(f"model is a {type(model).__name__}: pass a function that returns a module, or a module")
    return Own(getattr(model, "__name__", type(model).__name__), model, inputs, targets)


def from_file(path: Path, name: str) -> Any:
    """What is called `name` in a Python file. Raises ValueError if there is no such file or name, or it fails."""
    if not path.is_file():
        raise ValueError(
            f"there is no file {str(path)!r}: write the file and the function, such as train.py:make_model"
        )
    spec = importlib.util.spec_from_file_location(f"zerolab_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{str(path)!r} is not a Python file: write the file and the function in it")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))  # as Python does for a script, for what it imports beside itself
    sys.modules[spec.name] = module
    arguments, sys.argv = sys.argv, [str(path)]  # a script that reads its arguments gets its defaults
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"importing {path.name} raised {type(error).__name__} ({first_line(error)}): put what trains below "
            'if __name__ == "__main__":'
        ) from error
    finally:
        sys.path.pop(0)
        sys.argv = arguments
    made = vars(module)
    known = [each for each, value in made.items() if callable(value) and getattr(value, "__module__", "") == spec.name]
    if name not in made:
        what = f"function of {path.name}"
        if not known:
            raise ValueError(f"{path.name} defines no function: write one in it")
        nameless = f"{path.name} is a file: write the function behind it, such as {path.name}:{known[0]}"
        raise ValueError(unknown(what, name, known) if name else nameless)
    return made[name]


def inputs_of(text: str | None, model: str) -> Any:
    """A batch from text: a shape such as "4x3x32x32" or "4x512:int64", or a function of the model's file.

    Raises ValueError for what is neither.
    """
    if text is None:
        return None
    sizes, _, dtype = text.partition(":")
    if all(size.isdecimal() for size in sizes.split("x")):
        if 0 in map(int, sizes.split("x")):
            raise ValueError(f"{text!r} has a size of 0: write the batch as 4x512:int64 or 8x3x224x224")
        known = getattr(torch, dtype or "float32", None)
        if not isinstance(known, torch.dtype):
            raise ValueError(f"{dtype!r} is no dtype of torch: write the batch as 4x512:int64 or 8x3x224x224")
        return torch.empty([int(size) for size in sizes.split("x")], dtype=known, device=META)
    path, colon, _ = model.partition(":")
    if not (colon and text.isidentifier()):
        raise ValueError(f"{text!r} is no shape: write the batch as 4x512:int64 or 8x3x224x224")
    return from_file(Path(path), text)()


def from_configuration(path: Path) -> Own:
    """The model of a Hugging Face configuration, a file or a folder with one; nothing is downloaded.

    Raises ValueError for a file that is not one, or whose model_type is unknown; ImportError without transformers.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        read = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} cannot be read as a configuration ({first_line(error)}): give a config.json, a folder "
            "that has one, or train.py:make_model"
        ) from error
    kind: Any = read.get("model_type") if isinstance(read, dict) else None
    if kind is None:
        raise ValueError(f"{file} has no model_type: a Hugging Face configuration has one, such as 'llama'")
    if importlib.util.find_spec("transformers") is None:
        raise ImportError("a configuration needs transformers: pip install transformers, or pass a function")
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind not in CONFIG_MAPPING:
        raise ValueError(f"{unknown(f'model_type in {file.name}', kind, CONFIG_MAPPING)} (as transformers knows them)")
    configuration = transformers.AutoConfig.for_model(**{"model_type": kind, **read})
    _without_cache(configuration)
    named = getattr(transformers, str((read.get("architectures") or [None])[0]), None)
    if named is None and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(
            f"transformers has no causal language model for {kind!r}: name the class in {file.name}, such as "
            '"architectures": ["T5ForConditionalGeneration"]'
        )

    def build() -> nn.Module:
        # A class's own constructor builds in fp32, like the masters, whatever dtype the file was saved in.
        make: Any = named or transformers.AutoModelForCausalLM.from_config
        model: nn.Module = make(configuration)
        return model.train()

    name = kind if file.name == "config.json" else f"{kind} of {file.name}"
    longest = getattr(configuration, "max_position_embeddings", None)
    left_out = "quantization_config is left out: every parameter counts in its row's precision"
    return Own(name, build, longest=longest, labelled=True, note=left_out if "quantization_config" in read else None)


def _without_cache(configuration: Any) -> None:
    """A cache is for generating, and would be kept as activations; models with parts have a setting in each."""
    configuration.use_cache = False
    for name in configuration.sub_configs:
        if (part := getattr(configuration, name, None)) is not None:
            _without_cache(part)


def as_shapes(module: nn.Module) -> nn.Module:
    """An uncompiled copy of the module without memory, ties included; the module itself if it has none."""
    module = getattr(module, "_orig_mod", module)
    tensors = [*module.parameters(), *module.buffers()]
    if all(tensor.device == META for tensor in tensors):
        return module
    # What is in the memo counts as copied already, so no value is read.
    memo: dict[int, Any] = {id(tensor): torch.empty_like(tensor, device=META) for tensor in tensors}
    for weight in module.parameters():
        memo[id(weight)] = nn.Parameter(memo[id(weight)], requires_grad=weight.requires_grad)
    return deepcopy(module, memo)


def blocks_of(model: nn.Module, units: type | str | list[str] | None) -> list[str]:
    """Names of the modules that travel as one: those of a class, those named, or the repeated ones that are found.

    Raises ValueError for a class of which the model has no module, TypeError for anything else.
    """
    check_type("units", units, type | str | list | tuple | None, "a class of blocks, its name, or a list of names")
    if units is None:
        return find_units(model)
    units = units.__name__ if isinstance(units, type) else units  # the class itself, as FSDP's policies take it
    if not isinstance(units, str):
        return list(units)
    check_known("class of blocks", units, sorted({type(module).__name__ for module in model.modules()}))
    return [name for name, module in model.named_modules() if type(module).__name__ == units and name]


def described(model: nn.Module, blocks: Iterable[str]) -> str:
    """Which blocks were taken, in words: how many of which class."""
    counts: dict[str, list[str]] = {}
    for name in blocks:
        counts.setdefault(type(model.get_submodule(name)).__name__, []).append(name)
    named = [
        f"{len(names)} {kind} ({names[0]}{f' to {names[-1]}' * (len(names) > 1)})" for kind, names in counts.items()
    ]
    return ", ".join(named) or "none: the whole model is one unit"


def resized(values: Any, rows: int | None, length: int | None) -> Any:
    """The same nest as shapes, with other rows (the first dimension) and tokens a row (the second of whole numbers)."""
    first = tensors_in(values)[0]
    old = first.shape[0] if first.dim() else None
    long = first.shape[1] if first.dim() > 1 and not first.is_floating_point() else None

    def shape(tensor: torch.Tensor) -> torch.Tensor:
        size = list(tensor.shape)
        if rows and size and size[0] == old:
            size[0] = rows
        if length and len(size) > 1 and size[1] == long:
            size[1:] = [length if each == long else each for each in size[1:]]
        return torch.empty(size, dtype=tensor.dtype, device=META)

    return tree_map_only(torch.Tensor, shape, values)


def in_words(values: Any) -> str:
    """The tensors of a nest in words: `int64 [1, 2048]`."""
    return " and ".join(f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors_in(values))


def nothing_packed() -> AbstractContextManager[None]:
    """Within it transformers does not inspect positions for several texts in one row: a shape has no positions."""
    masking, name = sys.modules.get("transformers.masking_utils"), "find_packed_sequence_indices"
    return patches.replace(masking, name, lambda *_, **__: None) if hasattr(masking, name) else nullcontext()


def lacks_values(error: BaseException) -> bool:
    """Whether the error comes from a model that reads values, or whose control flow depends on them."""
    words = ("needs values", "cannot be simulated", "meta tensor", "unallocated storage", "data-dependent")
    return any(word in str(error) for word in words)


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors of a nest, in order."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _needed(function: Callable[..., Any]) -> list[str]:
    """Arguments without which a function cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # what is written in C has none
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in kinds]


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its kind."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
