"""The embedded backend: an OpenAI-compatible server for one small model, with speculation inside."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING

import uvicorn

from draftrunner.drafters import DRAFTERS
from draftrunner.embedded.app import Backend, create_app
from draftrunner.embedded.contexts import ContextStore
from draftrunner.embedded.engine import Engine, Limits
from draftrunner.embedded.fitting import fitting
from draftrunner.embedded.metrics import EngineMetrics
from draftrunner.embedded.prefixes import PrefixStore
from draftrunner.embedded.prompts import AskReader, Tokenizer
from draftrunner.embedded.target import LanguageModel
from draftrunner.listening import listen, own_url
from draftrunner.profiles import EMBEDDED
from draftrunner.weights import end_ids, find_checkpoint, load_model, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEPT_PREFIX_TOKENS = 16_384
"""About 380 MB of keys and values for the demo model in bfloat16."""

KEPT_CONTEXT_TOKENS = 16_384
"""The same; room to grow may double it."""

logger = logging.getLogger(__name__)


def run(*, host: str, port: int, model: str, dtype: str, served_model_name: str | None = None) -> None:
    """Load the model, then serve until stopped.

    Args:
        host: Address to listen on.
        port: 0 takes a free one; the log says which.
        model: Folder of a causal language model, or `demo`.
        dtype: `bfloat16` or `float32`.
        served_model_name: Model id to serve instead of the folder's name.

    Raises:
        StartError: The model cannot be served, or the address cannot be listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    checkpoint = find_checkpoint(model)
    loaded = load_model(checkpoint, dtype)
    backend = assemble(
        LanguageModel(loaded, end_ids=end_ids(loaded)),
        tokenizer=load_tokenizer(checkpoint),
        engine_tokenizer=load_tokenizer(checkpoint),
        model_id=served_model_name or checkpoint.model_id,
        limits=Limits(),
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


def assemble(
    model: LanguageModel,
    *,
    tokenizer: PreTrainedTokenizerBase,
    engine_tokenizer: PreTrainedTokenizerBase,
    model_id: str,
    limits: Limits,
) -> Backend:
    """Join the backend's parts.

    The engine has a tokenizer of its own, so that a long prompt being encoded does not hold up answers.
    """
    quick_tokenizer = Tokenizer(engine_tokenizer)
    drafters = {name: fitting(make(EMBEDDED), model.context_length) for name, make in DRAFTERS.items()}
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
