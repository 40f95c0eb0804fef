"""The engine executes batches with the weights, cache and kernels of one device.

engine = Engine.load(config, buffer_factory)     load weights, lay the cache over the buffer;
engine.bind(binding)                             before a sequence's first sampled token;
engine.restore(slot, kept_slot, num_tokens)      reuse a kept prefix;
step = engine.launch(batch)                      enqueue; sampled tokens feed the next launch;
batch = engine.overlapped(batch)                 prompts beside steps, if there is an ``overlap``;
result = step.result()                           wait, and read the sampled tokens.
"""

import logging
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from engine import warm_up
from engine.batch import Binding, ForwardBatch, Pass, passes
from engine.cache.pool_sizes import BufferFactory
from engine.checks import Checks
from engine.config import EngineConfig
from engine.graphs.decode_graphs import DecodeGraphs
from engine.graphs.prefill_graphs import PrefillGraphs, Shape
from engine.inputs import Inputs
from engine.kernels.interface import Kernels
from engine.loading import parts, weights
from engine.loading.phases import Phases
from engine.model.model import Model, finished
from engine.overlap import Overlap, OverlappedBatch
from engine.sampling import prompt_scores
from engine.sampling.grammars import Compiled, Grammars
from engine.sampling.prompt_scores import Scores
from engine.sampling.sampler import Sampler
from engine.speculation import Drafts, Speculation
from engine.spread.interface import Lending, Spreading
from engine.step import Draw, Outcome, SampleRow, Step
from engine.timer import Timer
from engine.upload import reserve_pinned
from engine.windows import windows_of
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.sampling import SamplingParams

if TYPE_CHECKING:
    from engine.cuda_parts import CudaParts

log = logging.getLogger(__name__)


class Engine:
    """Executes ``ForwardBatch``es over one cache region.

    A peer must match ``layout``, ``pools`` and ``fingerprint`` to exchange sequences. ``cache`` is
    the region, whose pages and state slots others may read between steps. One thread calls it. The
    caller manages state slots and pages: the engine writes only those that a batch names, and never
    reads memory that its rows did not write.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Model,
        cache: CacheTensors,
        layout: CacheLayout,
        pools: PoolSize,
        fingerprint: str,
        kernels: Kernels,
        grammars: Grammars | None = None,
    ) -> None:
        self.config = config
        self.model_config = model.config
        self.layout = layout
        self.pools = pools
        self.cache = cache
        self.fingerprint = fingerprint
        self.num_ids = config.num_valid_ids or model.config.vocab_size
        self._model, self._kernels = model, kernels
        self._num_logits = self.num_ids
        self._scored_block = prompt_scores.scored_block(config.device, kernels.prefill_block)
        self._windows = windows_of(layout, pools, cache)
        self._checks = Checks(layout, pools, model.config.max_position_embeddings)
        self._device = torch.device(config.device)
        self._graphs: DecodeGraphs | None = None
        self._prefill_graphs: PrefillGraphs | None = None
        self._drafts: Drafts | None = None
        self.max_drafts = config.max_drafts if model.weights.mtp else 0
        self.spread: Spreading | None = None
        self.lending: Lending | None = None
        self.overlap: Overlap | None = None
        self._sampler: Sampler
        self._cuda: CudaParts | None = None
        self.epoch_stream: torch.cuda.Stream | None = None
        if config.device == "cuda":
            self.epoch_stream = torch.cuda.Stream(priority=-1)
            self._cuda = cuda = cuda_parts(
                config, model, cache, layout, kernels, self.num_ids, self.max_drafts, grammars
            )
            self._num_logits, self._sampler = cuda.num_logits, cuda.sampler
            self._graphs, self._drafts = cuda.decode_graphs(), cuda.draft_graphs()
            self.spread = cuda.spread(self._graphs, self._drafts)
            self.lending, self.overlap = cuda.lending(), cuda.overlap()
        else:
            self._sampler = Sampler(
                pools.num_state_slots, self.num_ids, self._device, grammars=grammars
            )
        if config.draft_acceptance is not None:
            self._sampler.accept_drafts(config.draft_acceptance)
        if self.max_drafts and self._drafts is None:
            # A prefill worker verifies no drafts.
            num_drafts = self.max_drafts if config.decodes else 0
            self._drafts = Speculation(
                model, cache, layout, kernels, self._sampler, self._num_logits, num_drafts
            )

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        buffer_factory: BufferFactory,
        *,
        progress: weights.Progress | None = None,
        kernels: Kernels | None = None,
    ) -> "Engine":
        """Read the model of ``config.model_dir`` and lay the cache over a buffer.

        Raises ValueError naming the setting for a folder or config that cannot be served, and
        CheckpointError (a ValueError) naming the tensor or file for a bad checkpoint.
        """
        phases = Phases()
        loaded = parts.load(config, buffer_factory, phases, progress=progress, kernels=kernels)
        engine = cls(
            loaded.config, loaded.model, loaded.cache, loaded.layout, loaded.pools,
            loaded.fingerprint, loaded.kernels, loaded.grammars,
        )  # fmt: skip
        phases.ended("graphs of decode steps")
        if config.device == "cuda":
            engine.warm_up()
        phases.ended("graphs of prompts and warm-up")
        loaded.ahead.note()
        log.info("the engine is ready after %s", phases)
        if config.poison:
            cache = engine.cache
            for tensor in (cache.kv, cache.conv, cache.recurrent, cache.window_pages):
                tensor.fill_(float("nan"))
        return engine

    def prepare(self, sampling: SamplingParams) -> Compiled | None:
        """Begin the slow work on the host for a sequence with these settings. ``bind`` and sampling
        may wait for the returned grammar until it is compiled."""
        return self._sampler.prepare(sampling)

    def bind(self, binding: Binding) -> None:
        """Give a state slot its sequence's sampling settings; ordered after earlier launches. The
        sequence begins at its first token, unless ``restore`` follows."""
        self._sampler.bind(binding)
        self._checks.forget(binding.state_slot)
        if self._drafts is not None:
            self._drafts.forget(binding.state_slot)
        if self._graphs is not None:
            self._graphs.forget(binding.state_slot)

    @torch.inference_mode()
    def restore(self, state_slot: int, from_slot: int, num_tokens: int) -> None:
        """Let the sequence just bound to ``state_slot`` begin behind its first ``num_tokens``
        tokens, any number: copy the state behind them from ``from_slot``, unless that is the slot
        itself. Ordered between launches like ``bind``. The sequence's chunks are then aligned from
        ``num_tokens`` on, and its pages hold the tokens before.
        """
        self._checks.begin_at(state_slot, num_tokens)
        if from_slot != state_slot:
            for states in self.cache.states:
                states[state_slot].copy_(states[from_slot])

    @torch.inference_mode()
    def copy_page(self, from_page: int, to_page: int) -> None:
        """Copy a page, ordered between launches."""
        self.cache.kv[to_page].copy_(self.cache.kv[from_page])

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> Step:
        """Compute ``batch`` and sample; later decode rows are fed the chosen ids automatically.

        Asserts its preconditions (engine/checks.py), and that rows that sample are bound.
        """
        self._checks.check(batch)
        if self.overlap is not None:
            self.overlap.before_launch()
        timer = Timer(self._device)
        draws: list[tuple[Sequence[int], Outcome]] = []
        scores: list[tuple[tuple[int, ...], Scores]] = []
        separate = self.config.prompts_apart or self._drafts is not None or self.spread is not None
        for part in self._passes(batch, self._scored_block, separate=separate):
            if self._drafts is not None and part.decodes:
                owners, verified = self._drafts.launch(part.rows, batch.num_next_drafts)
                draws.append(([part.sampled[i] for i in owners], verified))
                continue
            if part.scored:
                draw, scored = self._run_scored(part)
                scores.append((part.scored, scored))
            else:
                draw = self._run(part)
            if draw is not None:
                draws.append((part.sampled, draw))
        timer.stop()
        return Step(len(batch.rows), tuple(draws), timer, tuple(scores))

    def overlapped(self, batch: ForwardBatch, share: int) -> OverlappedBatch:
        """Begin to compute ``batch``, all prompts and none scored, beside the steps that are
        launched meanwhile: these have ``share`` of the multiprocessors, one of those that
        ``overlap`` offers, and the batch has the others. It runs behind all that was launched
        before, and no batch of prompts may be launched until it is done, except in the same way.
        """
        assert self.overlap is not None, "an engine without a divided GPU"
        self._checks.check(batch)
        return self.overlap.begin(self._run_in_parts(batch), share)

    def warm_up(self) -> None:
        """Run every kind of batch once, so that no request waits for a kernel to be compiled.

        Call it before any page or state slot is handed out: it uses the first ones.
        """
        # Before all else: capturing frees the memory in which passes without a graph work.
        prefill_graphs = None
        if self._cuda:
            self._cuda.plan_pieces()
            prefill_graphs = self._cuda.prefill_graphs()
        longest = self.model_config.max_position_embeddings
        decodes = self.config.decodes
        most = self.config.max_prompt_tokens
        for bindings, batch in warm_up.batches(
            self.layout, self.pools, longest, most, decodes=decodes
        ):
            for binding in bindings:
                self.bind(binding)
            self.launch(batch).result()
            if self.overlap is not None and all(row.token_ids for row in batch.rows):
                # The kernels are the same with each share, but the largest batch takes memory.
                largest = sum(row.length for row in batch.rows) >= most
                for share in self.overlap.shares if largest else self.overlap.shares[:1]:
                    self.overlapped(batch, share).result()
        if self.config.device == "cuda":
            reserve_pinned()
        self._prefill_graphs = prefill_graphs

    def poison_pages(self, ids: Iterable[int]) -> None:
        """Fill freed pages with NaN, so that a read before a write shows in the logits."""
        self.cache.kv[list(ids)] = float("nan")

    def poison_slot(self, state_slot: int) -> None:
        """Fill a freed state slot with NaN."""
        for states in self.cache.states:
            states[state_slot] = float("nan")

    def _passes(
        self, batch: ForwardBatch, scored_block: int | None = None, *, separate: bool
    ) -> list[Pass]:
        windows, block = self._windows, self._kernels.prefill_block
        return passes(
            batch,
            block,
            scored_block,
            separate=separate,
            longest=windows.longest,
            groups=windows.groups,
        )

    def _run(self, part: Pass) -> Draw | None:
        """Compute a pass and sample; None if no row samples."""
        if self._graphs is not None and part.decodes:
            return self._sampler.sample(*self._graphs.launch(part.rows), _sampled(part))
        if self._prefill_graphs is not None and (shape := self._prefill_graphs.shape_of(part.rows)):
            return self._replay_prompts(self._prefill_graphs, shape, part)
        every_token = self._drafts is not None
        hidden, inputs = finished(self._forward(part, every_token=every_token))
        return self._sample(hidden, inputs, part, every_token=every_token)

    def _run_in_parts(self, batch: ForwardBatch) -> Generator[None, None, Step]:
        """Enqueue a batch of prompts layer by layer; returns the launched batch."""
        timer = Timer(self._device)
        draws: list[tuple[Sequence[int], Outcome]] = []
        every_token = self._drafts is not None
        for part in self._passes(batch, separate=True):
            assert not part.decodes, "steps are not overlapped"
            assert not part.scored, "scored prompts are not overlapped"
            hidden, inputs = yield from self._forward(part, every_token=every_token)
            with self._sampler.on_another_stream():
                draw = self._sample(hidden, inputs, part, every_token=every_token)
            if draw is not None:
                draws.append((part.sampled, draw))
        timer.stop()
        return Step(len(batch.rows), tuple(draws), timer)

    def _run_scored(self, part: Pass) -> tuple[Draw | None, Scores]:
        """Compute a pass of scored prompts; never in a graph, which keeps only the states of
        sampled tokens."""
        hidden, inputs = finished(self._forward(part, every_token=True))
        scores = prompt_scores.score(hidden, part.rows, self._logits, self.num_ids)
        return self._sample(hidden, inputs, part, every_token=True), scores

    def _replay_prompts(self, graphs: PrefillGraphs, shape: Shape, part: Pass) -> Draw | None:
        """Compute a pass of prompts by a graph, and sample."""
        windows = self._windows.begin(part.rows)
        stepped = graphs.launch(shape, part.rows, windows)
        self._windows.end(windows)
        draw = self._sampler.sample(*stepped, _sampled(part)) if part.sampled else None
        if self._drafts is not None:
            inputs = Inputs.of(part.rows, self.layout, self._device)
            self._drafts.prefilled(part, inputs, graphs.hidden_of(part.rows))
        return draw

    def _forward(
        self, part: Pass, *, every_token: bool
    ) -> Generator[None, None, tuple[torch.Tensor, Inputs]]:
        """Compute a pass without a graph, layer by layer -> the hidden states of its sampled
        tokens, or of ``every_token``."""
        windows = self._windows.begin(part.rows)
        inputs = Inputs.of(part.rows, self.layout, self._device, windows)
        ids = inputs.prefill_ids
        if inputs.decode:
            fed = self._sampler.next_token.index_select(0, inputs.decode.state_slots)
            ids = torch.cat((fed, ids)) if inputs.prefill else fed
        hidden = yield from self._model.forward(
            inputs, ids, self.cache, self._kernels, every_token=every_token
        )
        self._windows.end(windows)
        return hidden, inputs

    def _sample(
        self, hidden: torch.Tensor, inputs: Inputs, part: Pass, *, every_token: bool
    ) -> Draw | None:
        """Sample from the ``hidden`` states that ``_forward`` returned. The draft layer takes those
        of every token."""
        draw = None
        if part.sampled:
            sampled = hidden.index_select(0, inputs.sample_index) if every_token else hidden
            draw = self._sampler.sample(
                self._logits(sampled), inputs.sample_slots, inputs.sample_positions, _sampled(part)
            )
        if self._drafts is not None:
            self._drafts.prefilled(part, inputs, hidden)
        return draw

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden, self._num_logits, self._kernels)


def cuda_parts(*args: Any) -> "CudaParts":
    """Make CudaParts; imported here, since triton needs a GPU."""
    from engine.cuda_parts import CudaParts

    return CudaParts(*args)


def _sampled(part: Pass) -> list[SampleRow]:
    return [SampleRow(row.state_slot, row.start + row.length) for row in part.rows if row.sample]
