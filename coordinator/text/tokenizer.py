"""Converts text to token ids and back, and reads what the HTTP side must know of a checkpoint."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

from coordinator.text.boundaries import Boundaries
from coordinator.text.chat_template import ChatTemplate, TemplateRefused
from coordinator.text.detokenizer import TokenBytes
from coordinator.text.dialect import dialect_of
from coordinator.text.grammar_checks import GrammarChecks
from coordinator.text.thoughts import CLOSE, OPEN, ThoughtIds
from coordinator.text.turn_ids import TurnIds
from transport.checkpoint_folder import (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_json,
)
from transport.eos_ids import eos_ids
from transport.wire.token_ids import TokenIds, packed

_T = TypeVar("_T")
_NUM_THREADS = 4
_NUM_THREADS_ASIDE = 2
_THOUGHT_LEN = 3  # tokens that a template may put between <think> and the output, and itself
# A text is measured by its start before all of it is encoded, at this many characters for each
# token that fits: a prompt that is ten times too long is refused without encoding all of it.
_PROBE_CHARS_PER_TOKEN = 12
_SAMPLING_KEYS = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})


@dataclass(frozen=True)
class CheckpointInfo:
    """What the HTTP side must know of a checkpoint.

    ``sampling_defaults`` holds only what generation_config.json sets; requests override it.

    ``eos_ids`` ends a sequence at any of its ids; ``max_position`` is in tokens.
    """

    root: str
    eos_ids: tuple[int, ...]
    max_position: int
    sampling_defaults: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "CheckpointInfo":
        """Read a checkpoint's folder. Raises ValueError, naming the file, if config.json lacks
        something that serving needs."""
        config = read_json(folder / CONFIG)
        text = config.get("text_config") or config
        generation = read_json(folder / GENERATION, required=False)
        max_position = text.get("max_position_embeddings")
        if not isinstance(max_position, int) or max_position < 1:
            raise ValueError(f"{folder}/config.json: max_position_embeddings is {max_position!r}")
        return cls(
            root=str(folder),
            eos_ids=eos_ids(folder),
            max_position=max_position,
            sampling_defaults={
                key: value
                for key, value in generation.items()
                if key in _SAMPLING_KEYS and value is not None
            },
        )


class Tokenizer:
    """A checkpoint's tokenizer. Safe to use from several threads.

    ``num_valid_ids`` is one more than the highest id the tokenizer has (the model may have more
    rows, as padding); ``special_ids`` are skipped in text unless a request wants them. ``dialect``:
    how its chats are written.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        template: ChatTemplate | None,
        info: CheckpointInfo,
        folder: Path,
    ) -> None:
        self.folder = folder
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._template = template
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="tokenizer")
        self._aside = ThreadPoolExecutor(_NUM_THREADS_ASIDE, thread_name_prefix="lookup")
        self.info = info
        self.num_valid_ids = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        added = backend.get_added_tokens_decoder()
        self.dialect = dialect_of(template, {token.content for token in added.values()})
        self.special_ids = frozenset(
            i
            for i, token in added.items()
            if token.special and token.content not in self.dialect.tags
        )
        self.token_bytes = TokenBytes(backend)
        self.boundaries = Boundaries(backend, self.dialect.turns)
        self._turn_ids = TurnIds(backend, start=self.dialect.turns.start)
        self._adds_tokens = backend.num_special_tokens_to_add(is_pair=False) > 0
        self._thought = backend.token_to_id(OPEN), backend.token_to_id(CLOSE)
        self._header = self.encode(self.dialect.header, add_special_tokens=False)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Load a folder's tokenizer. Raises ValueError, naming the file, if there is none."""
        info = CheckpointInfo.read(folder)
        file = folder / TOKENIZER
        if not file.is_file():
            raise ValueError(f"{file} is missing")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the Rust side raises bare Exception
            raise ValueError(f"{file} is not a tokenizer: {error}") from error
        return cls(backend, ChatTemplate.read(folder), info, folder)

    def thought_of(self, prompt: TokenIds) -> ThoughtIds | None:
        """The tokens around the thought with which an answer to ``prompt`` may begin; None if it
        has no thought."""
        (start, end), last = self._thought, list(prompt[-_THOUGHT_LEN:])
        if start is None or end is None:
            return None
        if start in last and end not in last:
            return ThoughtIds(end)
        if self._header and prompt[-len(self._header) :] == self._header:
            return ThoughtIds(end, start)
        return None

    def with_thought(self, prompt: TokenIds) -> TokenIds:
        """``prompt`` with the beginning of a thought behind it, if the model would write that."""
        thought = self.thought_of(prompt)
        if thought is None or thought.start is None:
            return prompt
        return prompt + self.encode(f"{OPEN}\n", add_special_tokens=False)

    @property
    def has_template(self) -> bool:
        """True if the model has a chat template."""
        return self._template is not None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The checkpoint's tokenizer_config.json, with its chat template."""
        found = read_json(self.folder / TOKENIZER_CONFIG, required=False)
        return (
            found if self._template is None else {**found, "chat_template": self._template.source}
        )

    @cached_property
    def grammar_checks(self) -> GrammarChecks:
        """The checks whether a grammar can be compiled for this vocabulary."""
        return GrammarChecks(self.folder, self.num_valid_ids, self.info.eos_ids)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        max_len: int | None = None,
        salt: str | None = None,
    ) -> TokenIds:
        """Token ids of ``text``; possibly only somewhat more than ``max_len`` of them, if the text
        surely has more. Chat turns that an earlier text with the same ``salt`` had are not encoded
        again; without a salt no turn is looked up or kept."""
        if max_len is not None and len(text) > (probe := (max_len + 64) * _PROBE_CHARS_PER_TOKEN):
            ids = self._encode(text[:probe], add_special_tokens, salt)
            if len(ids) > max_len + 64:
                return ids
        return self._encode(text, add_special_tokens, salt)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        add_special_tokens: bool = False,
        continue_final: bool = False,
        variables: Mapping[str, Any] | None = None,
        max_len: int | None = None,
        salt: str | None = None,
    ) -> TokenIds:
        """Token ids of a rendered conversation, as ChatTemplate.render has it, with the dialect's
        defaults of ``variables``; raises TemplateRefused."""
        if self._template is None:
            raise TemplateRefused("this model has no chat template; use /v1/completions")
        text = self._template.render(
            messages, add_generation_prompt=add_generation_prompt, continue_final=continue_final,
            variables={**self.dialect.defaults, **(variables or {})},
        )  # fmt: skip
        return self.encode(text, add_special_tokens=add_special_tokens, max_len=max_len, salt=salt)

    def token_strs(self, token_ids: Iterable[int]) -> list[str]:
        """Each token as the vocabulary writes it; "" for an id that it lacks."""
        return [self._backend.id_to_token(token_id) or "" for token_id in token_ids]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids below ``num_valid_ids``; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    async def run(
        self, work: Callable[..., _T], *args: Any, aside: bool = False, **kwargs: Any
    ) -> _T:
        """Call one of the methods above on a thread pool, off the event loop. ``aside``: on a pool
        that no prompt waits for. A cancelled call that has not begun is dropped."""
        pool = self._aside if aside else self._pool
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Let the threads end; what is queued is dropped."""
        for pool in (self._pool, self._aside):
            pool.shutdown(wait=False, cancel_futures=True)
        if "grammar_checks" in vars(self):
            self.grammar_checks.close()

    def _encode(self, text: str, add_special_tokens: bool, salt: str | None) -> TokenIds:
        if salt is not None and not (add_special_tokens and self._adds_tokens):
            return self._turn_ids.encode(text, salt)
        # NOTE: encode() holds the GIL all along; the batch form releases it and skips offsets.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return packed(batch[0].ids)
