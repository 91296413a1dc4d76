"""The native core: items to tokens and back. This stub is its reference documentation.

The laws (the same words stand in rust/core/src/lib.rs and in the property tests):

1. Append-only.  ``prompt[:prefix_len] == tokens(parent)[:prefix_len]``. A committed token never changes.
2. Verbatim.     A sampled span equals the ids pushed, id for id, whatever text they spell (a final stop
                 token may be replaced by the family's close).
3. Whole.        Item spans partition the prompt; ``bytes(tokens(span)) == bytes(text(span))``.
4. Cut-safe.     Encoding the pieces apart equals the reference tokenizer on the whole.
5. Same as naive. The fast path equals a from-scratch render of the same items with jinja2 and HF
                 ``tokenizers``, outside sampled spans; inside them the special-token skeleton is equal.
6. Chunk-blind.  Any split of sampled ids into pushes yields the same deltas and text.
7. Flat.         Opening a turn at a tip costs what is new: nothing in it is proportional to history.
8. Checked.      Our ids for probe conversations equal the engine's own where it can render or encode:
                 asked when an engine is attached.

As asserts, for any ``chains``, ``items`` and ``sampled``::

    turn = chains.open(None, items); turn.push(sampled); turn.finish(); node = turn.commit()
    after = chains.open(node, more)
    assert after.prompt.tolist()[: after.prefix_len] == node.tokens().tolist()[: after.prefix_len]
    assert sum(span.end - span.start for span in after.spans()) == len(after.prompt)

Errors are the classes of :mod:`turnwire.errors`. After an InvariantError a Turn is poisoned: every
later call raises the same error.
"""

from collections.abc import Sequence
from typing import Literal, Self, TypeAlias, final

from typing_extensions import Buffer

__all__ = [
    "Chains",
    "Delta",
    "Node",
    "Profile",
    "Span",
    "TokenBuffer",
    "Turn",
    "__version__",
]

__version__: str

Trust: TypeAlias = Literal["strict", "compat"]
History: TypeAlias = Literal["template", "retain"]
Kind: TypeAlias = Literal["cold", "extend", "fork", "rebase", "rewind"]

@final
class TokenBuffer:
    """An immutable view of token ids: u32, contiguous, by the buffer protocol (``memoryview(b)``,
    format ``I``). It stays valid and unchanged whatever the chain does later."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def tolist(self) -> list[int]:
        """A list, for engines that insist on one (4.4 ms per 100k ids against 0.6 µs)."""

@final
class Span:
    """A stretch of a prompt: token offsets ``start``, ``end``; ``items`` as (first, end) indices of
    the chain's items it renders; ``kind`` and ``origin``."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def items(self) -> tuple[int, int]: ...
    @property
    def kind(self) -> Literal["header", "item", "generation_prompt", "sampled"]: ...
    @property
    def origin(self) -> Literal["rendered", "sampled", "reencoded"]: ...

@final
class Delta:
    """A piece of what the model is saying, in order.

    ``reasoning`` and ``text`` carry ``text``; ``call`` begins a function call and carries ``call_id``,
    ``name`` and ``namespace``, the client's own; ``arguments`` carries ``text``, raw JSON as sampled.
    ``custom_call`` begins a call of a custom tool, and ``input`` carries its ``text``; ``search_call`` and
    ``query`` (raw JSON) are the same for a search for tools. A delta of another kind, or a new call, ends
    the item before it.
    """

    @property
    def kind(
        self,
    ) -> Literal[
        "reasoning", "text", "call", "arguments", "custom_call", "input", "search_call", "query"
    ]: ...
    @property
    def text(self) -> str: ...
    @property
    def call_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str | None: ...

@final
class Profile:
    """A model's tokenizer, template, family and capabilities; immutable, fingerprinted."""

    @staticmethod
    def load(
        path: str,
        *,
        trust: Trust = "strict",
        history: History = "template",
        verdicts: str | None = None,
    ) -> Profile:
        """From a Hugging Face folder with a vocabulary (``tokenizer.json``, else ``tekken.json``, else
        tiktoken's ranks, else SentencePiece's ``tokenizer.model``) and a chat template
        (``tokenizer_config.json`` or ``chat_template.jinja``), or from a GGUF's metadata. ``history`` is
        what becomes of earlier reasoning: what the template does by itself, or ``retain``, by the
        template's own switch. ``verdicts`` is a directory in which it is remembered that a vocabulary's
        fast encoder has passed its probe: the next start is a second or two shorter. Raises
        ProfileError, naming the file and the reason; also where ``retain`` cannot be had."""
    def with_template(
        self, template: str, *, trust: Trust = "strict", history: History = "template"
    ) -> Profile:
        """The same vocabulary under another chat template, or other options. Raises ProfileError."""
    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str:
        """The native renderer's name, or ``generic``: the template itself is run for every prompt."""
    @property
    def not_native(self) -> str | None:
        """Why no native renderer serves the template; None where one does."""
    @property
    def knows_verbosity(self) -> bool:
        """Whether the template has a knob for how much is said."""
    @property
    def reads_calls(self) -> bool:
        """Whether the calls that the model makes are recognised in its output."""
    @property
    def encoder(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def trust(self) -> Trust: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def stop_token_ids(self) -> frozenset[int]: ...
    def audit(self) -> list[tuple[str, Literal["good", "note", "doubt"], str]]:
        """What the profile was found to be when it was loaded: (topic, verdict, sentence). A ``doubt``
        is something that would be wrong or cannot be used; a ``note``, a cost or a limit."""
    def encode(self, text: str, *, control: bool = False) -> TokenBuffer:
        """The ids of ``text``; added tokens in it are matched only with ``control``."""
    def encode_reference(self, text: str, *, control: bool = False) -> TokenBuffer:
        """The same by the reference tokenizer."""
    def decode(self, ids: Sequence[int] | Buffer) -> str:
        """The text of ``ids``, added tokens as their own text, invalid UTF-8 as U+FFFD."""
    def encode_output(self, output: bytes) -> list[int]:
        """What this family's model would sample for an answer, its stop id included:
        ``{"reasoning": str?, "text": str?, "calls": [{"name": str, "arguments": str}]?}``."""

@final
class Node:
    """A committed response in memory: immutable. It keeps its ancestors alive."""

    @property
    def token_count(self) -> int: ...
    @property
    def item_count(self) -> int: ...
    @property
    def item_types(self) -> list[str]:
        """The type of every item of the chain, oldest first."""
    def tokens(self) -> TokenBuffer:
        """Prompt and sampled ids, flat (a copy when the node is no tip)."""
    def export(self) -> bytes:
        """Write what this turn brought, for a store: ``Chains.hydrate`` makes a Node of it again.

        Costs what the turn brought, not its history. A turn whose past was found by what it says
        (``Turn.known_items``) is written with all its items and without tokens, and stands alone.
        Releases the GIL."""
    def spans(self) -> list[Span]: ...

@final
class Chains:
    """Every chain of one profile, in memory. Knows no response ids, lanes or principals.

    Committed nodes are found again by what they say (see ``open``) until their bytes are more than
    ``budget_bytes`` or nobody has used them for ``ttl_seconds``. A Node that somebody holds works on
    after it has been forgotten here.
    """

    def __new__(
        cls, profile: Profile, *, budget_bytes: int = 1073741824, ttl_seconds: int = 3600
    ) -> Self: ...
    @property
    def held_bytes(self) -> int:
        """Bytes of tokens, tapes and items of every chain, whoever holds it."""
    @property
    def profile(self) -> Profile: ...
    def hydrate(self, parent: Node | None, blob: bytes) -> Node:
        """Return the Node that ``Node.export`` wrote, behind the ``parent`` that it continued.

        Two blobs one behind the other are a blob of two turns. Tokens are taken as they are where
        they are of this profile; else the items are rendered again.

        Raises InvalidValueError: at ``blob`` for bytes that are no export, at ``input`` for a
        conversation that this profile's template refuses. Releases the GIL."""
    def open(
        self,
        parent: Node | None,
        input: Buffer,
        *,
        instructions: Buffer | None = None,
        tools: Buffer | None = None,
        tool_choice: Buffer | None = None,
        parallel_tool_calls: bool = True,
        effort: str | None = None,
        verbosity: str | None = None,
        generate: bool = True,
        scope: Buffer | None = None,
        now: int | None = None,
    ) -> Turn:
        """Begin a response after ``parent``; without one, after the longest beginning of ``input``
        that is known in ``scope`` (None: look for nothing, and be found by nobody).

        Items of a known beginning are compared in full. What the model sampled also stands for the
        client's echo of it without its reasoning, or with a call's arguments spelled otherwise.

        ``input``, ``instructions``, ``tools`` and ``tool_choice`` are the request's raw JSON values
        (``null`` counts as absent; ``input`` may be a string or an array, empty with a parent). With
        ``generate`` false no generation prompt is rendered and nothing may be pushed. ``now`` is when a
        conversation that begins here began, in seconds since 1970 (None: the clock's): what its
        template's clock shows in every turn. ``effort`` is ``reasoning.effort``: ``none`` asks the model
        not to think, and the others to think, as much as its template can say; None is the model's own
        way. ``verbosity`` is ``text.verbosity``, for a template that has a knob for it. A change of
        either may change the header, and is a rebase then.

        Raises RequestError classes that name the parameter, before anything has changed. Releases
        the GIL; may be called from any thread.
        """

    def verify(self, node: Node) -> bool:
        """Render the conversation of ``node`` again in full, by its native renderer and by its template,
        and compare what they print, and its tokens with those of the new render, outside of what was
        sampled. False where the template printed it anyway. Raises InvariantError, which says where
        they part and quotes nothing; the template renders every prompt from then on. Releases the GIL;
        costs tens of milliseconds for 100k tokens."""

@final
class Turn:
    """A response in the making: open, push*, finish, commit or abort. One owner."""

    @property
    def kind(self) -> Kind: ...
    @property
    def prefix_len(self) -> int:
        """How many tokens of ``prompt`` the parent's own tokens begin with."""
    @property
    def prompt(self) -> TokenBuffer: ...
    @property
    def rendered(self) -> int:
        """Tokens encoded for this turn: its new items and its generation prompt."""
    @property
    def reencoded(self) -> int:
        """Tokens sampled in earlier turns that ``prompt`` holds otherwise than as sampled, since the
        template prints their text otherwise, or no more. 0 with a native renderer."""
    @property
    def known_items(self) -> int:
        """How many items of ``input`` were found in the scope's past instead of being rendered."""
    @property
    def open_micros(self) -> int:
        """How long ``open`` took, in microseconds."""
    @property
    def constraint(self) -> tuple[str, str, list[tuple[str, bytes]], bool] | None:
        """What a forced ``tool_choice`` demands of the output: the fields of
        :class:`turnwire.engine.base.ToolCallConstraint`."""
    @property
    def new_content(self) -> list[str]:
        """The texts of the turn's new items, for classifiers."""
    @property
    def last_item(self) -> tuple[str, str, str] | None:
        """(type, text, tool name) of the newest input item, of the whole chain when ``input`` was
        empty. The name is that of the answered call for an output."""
    @property
    def echo(self) -> tuple[bytes, bytes, bytes]:
        """The request's instructions, tools and tool choice as the Response object echoes them: JSON."""
    @property
    def may_think(self) -> bool:
        """Whether the model may reason before it answers."""
    @property
    def may_call(self) -> bool:
        """Whether there are tools that the model may call."""
    @property
    def left_out(self) -> list[str]:
        """The types of the request's hosted tools, which nobody here runs: they are neither rendered nor
        echoed."""
    def push(self, ids: Sequence[int] | Buffer) -> list[Delta]:
        """Append sampled ids. Ids after a stop id are ignored. Raises InvalidValueError for an id
        that the vocabulary does not have."""
    @property
    def stopped(self) -> bool:
        """Whether a stop id was pushed."""
    @property
    def sampled(self) -> int:
        """Ids pushed so far, stop id included."""
    @property
    def reasoning_tokens(self) -> int: ...
    def finish(self) -> list[Delta]:
        """No more ids: whatever was held back (half a character, half a marker)."""
    def commit(self) -> Node:
        """Publish the turn as an immutable node. Needs ``finish`` first when it was to generate."""
    def abort(self) -> None:
        """Drop the turn. Nothing of it stays. Safe to call twice and after ``commit`` (no effect)."""
    def spans(self) -> list[Span]: ...
