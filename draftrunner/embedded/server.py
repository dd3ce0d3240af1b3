"""The embedded backend: an OpenAI-compatible server for one small model, with speculation inside."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING

import uvicorn

from draftrunner.drafters import make_drafters
from draftrunner.embedded.app import Backend, create_app
from draftrunner.embedded.contexts import ContextStore
from draftrunner.embedded.engine import Engine, Limits
from draftrunner.embedded.fitting import fitting
from draftrunner.embedded.metrics import EngineMetrics
from draftrunner.embedded.prefixes import PrefixStore
from draftrunner.embedded.prompts import AskReader, Tokenizer
from draftrunner.embedded.target import LanguageModel
from draftrunner.errors import StartError
from draftrunner.listening import listen, own_url
from draftrunner.model import Drafter
from draftrunner.pairing import compare_tokenizers
from draftrunner.profiles import EMBEDDED
from draftrunner.weights import end_ids, find_checkpoint, load_model, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from draftrunner.drafters.loading import DraftModel

KEPT_PREFIX_TOKENS = 16_384
"""About 380 MB of keys and values for the demo model in bfloat16."""

KEPT_CONTEXT_TOKENS = 16_384
"""The same; room to grow may double it."""

logger = logging.getLogger(__name__)


def run(
    *,
    host: str,
    port: int,
    model: str,
    dtype: str,
    served_model_name: str | None = None,
    draft_model: DraftModel | None = None,
) -> None:
    """Load the model, then serve until stopped.

    Args:
        host: Address to listen on.
        port: 0 takes a free one; the log says which.
        model: Folder of a causal language model, or `demo`.
        dtype: `bfloat16` or `float32`.
        served_model_name: Model id to serve instead of the folder's name.
        draft_model: One to draft with, next to the drafters that need no weights.

    Raises:
        StartError: The model cannot be served, the draft model does not fit it, or the address cannot be
            listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    checkpoint = find_checkpoint(model)
    loaded = load_model(checkpoint, dtype)
    target = LanguageModel(loaded, end_ids=end_ids(loaded))
    tokenizer = load_tokenizer(checkpoint)
    if draft_model is not None:
        check_pair(target, tokenizer, draft_model)
    backend = assemble(
        target,
        tokenizer=tokenizer,
        engine_tokenizer=load_tokenizer(checkpoint),
        model_id=served_model_name or checkpoint.model_id,
        limits=Limits(),
        draft_model=draft_model.drafter if draft_model else None,
    )
    with listen(host, port) as listener:
        url = own_url(host, listener.getsockname()[1])
        logger.info("embedded backend serving %s (%s) on %s", backend.model_id, dtype, url)
        config = uvicorn.Config(
            create_app(backend),
            log_config=None,
            log_level="warning",
            # Longer than a gateway keeps idle connections, so that one in use is never closed from here.
            timeout_keep_alive=60,
            timeout_graceful_shutdown=5,
        )
        uvicorn.Server(config).run(sockets=[listener])


def check_pair(target: LanguageModel, tokenizer: PreTrainedTokenizerBase, draft_model: DraftModel) -> None:
    """Refuse a draft model whose token ids mean other texts than the target's.

    Raises:
        StartError: They do; the message names the first such id.
    """
    comparison = compare_tokenizers(
        tokenizer,
        draft_model.tokenizer,
        target_size=target.vocabulary_size,
        draft_size=draft_model.vocabulary_size,
    )
    if not comparison.agrees:
        raise StartError(
            f"the draft model {draft_model.name} cannot draft for this model: {comparison.sentence}. "
            "Choose a --draft-model with the target's tokenizer."
        )
    logger.info("draft model %s: %s", draft_model.name, comparison.sentence)


def assemble(
    model: LanguageModel,
    *,
    tokenizer: PreTrainedTokenizerBase,
    engine_tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    limits: Limits,
    draft_model: Drafter | None = None,
) -> Backend:
    """Join the backend's parts.

    The engine has a tokenizer of its own, so that a long prompt being encoded does not hold up answers.
    """
    quick_tokenizer = Tokenizer(engine_tokenizer)
    drafters = {
        name: fitting(profiles[EMBEDDED.name], model.context_length)
        for name, profiles in make_drafters(draft_model).items()
    }
    metrics = EngineMetrics()
    engine = Engine(
        model=model,
        decode=quick_tokenizer.decode,
        drafters=drafters,
        prefixes=PrefixStore(most_tokens=KEPT_PREFIX_TOKENS),
        contexts=ContextStore(most_tokens=KEPT_CONTEXT_TOKENS),
        metrics=metrics,
        limits=limits,
    )
    return Backend(
        model_id=model_id,
        context_length=model.context_length,
        engine=engine,
        reader=AskReader(Tokenizer(tokenizer), model, drafters),
        spell=quick_tokenizer.decode_all,
        drafters=drafters,
        metrics=metrics,
        version=importlib.metadata.version("ace-gateway"),
    )
