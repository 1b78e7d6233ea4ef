"""A log's lifecycle against a model that knows nothing of states: which callers wait, and for
what."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.log.lifecycle import Effect, Event, Lifecycle, State

STEPS = {Effect.BEGIN_LOAD: "load", Effect.CREATE_LEDGER: "create", Effect.BEGIN_RESUME: "resume"}


class Model(RuleBasedStateMachine):
    """A host that performs the effects, and what it may expect of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lifecycle = Lifecycle()
        self.under_way: list[str] = []
        """Steps of the host."""
        self.must_wait, self.is_visible = True, False
        """As the effects say."""
        self.is_loaded = self.has_ledger = self.is_draining = self.is_over = False
        """What the model knows: read once, a ledger takes appends, it was handed over or ended."""
        self.waits_for: str | None = "load"
        """What appends wait for, as the model sees it; None: they go ahead."""

        self.count = self.may_end = 0

    @initialize(may_end=st.integers(0, 40))
    def begin(self, may_end: int) -> None:
        """How many events come before the first that ends the log: else most runs are short."""
        self.may_end = may_end

    def on(self, event: Event) -> None:
        self.count += 1
        for effect in self.lifecycle.on(event):
            if effect in STEPS:
                assert STEPS[effect] not in self.under_way, "begun twice"
                self.under_way.append(STEPS[effect])
            elif effect is Effect.HOLD_APPENDS:
                self.must_wait = True
            elif effect is Effect.RELEASE_APPENDS:
                self.must_wait = False
            elif effect in {Effect.PUBLISH, Effect.UNPUBLISH}:
                self.is_visible = effect is Effect.PUBLISH

    @property
    def is_serving(self) -> bool:
        return not self.is_draining and not self.is_over

    # --- another owner first

    @precondition(lambda self: self.lifecycle.state is State.UNLOADED and not self.under_way)
    @rule()
    def expect_handover(self) -> None:
        self.on(Event.HANDOVER_EXPECTED)
        self.waits_for = "turn"

    @precondition(lambda self: self.waits_for == "turn")
    @rule()
    def turn(self) -> None:
        self.on(Event.OWNERSHIP_TAKEN)
        if self.is_serving:
            self.waits_for = "load"
            assert self.under_way == ["load"]

    # --- clients

    @rule()
    def read(self) -> None:
        self.on(Event.READ_REQUESTED)
        if self.is_serving and self.waits_for == "load":
            assert self.under_way, "somebody loads it"

    @rule()
    def append(self) -> None:
        may_append = not self.must_wait and self.has_ledger
        self.on(Event.APPEND_REQUESTED)
        if not self.is_serving or may_append or self.waits_for in {"turn", "next", "pending"}:
            return
        if self.waits_for is None:
            self.waits_for = "create"
        if self.waits_for == "doubt":
            self.waits_for = "resume"
        assert self.waits_for in self.under_way, "whoever waits has somebody at work"

    @precondition(lambda self: self.has_ledger and self.waits_for in {None, "next", "pending"})
    @rule()
    def append_fails(self) -> None:
        self.on(Event.APPEND_FAILED)
        self.has_ledger = False
        if self.is_serving:
            self.waits_for = "resume"

    # --- steps

    @precondition(lambda self: "load" in self.under_way)
    @rule()
    def load_ends(self, has_ledger: bool = True) -> None:
        self.loaded("load", has_ledger=has_ledger)

    def loaded(self, step: str, *, has_ledger: bool) -> None:
        self.under_way.remove(step)
        self.on(Event.LOADED_OPEN if has_ledger else Event.LOADED_EMPTY)
        if self.is_serving:
            self.is_loaded, self.has_ledger, self.waits_for = True, has_ledger, None

    @precondition(lambda self: "load" in self.under_way)
    @rule()
    def load_finds_no_ledger(self) -> None:
        self.loaded("load", has_ledger=False)

    @precondition(lambda self: "load" in self.under_way)
    @rule()
    def load_fails(self) -> None:
        self.under_way.remove("load")
        self.on(Event.LOAD_FAILED)

    @precondition(lambda self: "create" in self.under_way)
    @rule()
    def ledger_is_there(self) -> None:
        self.under_way.remove("create")
        self.on(Event.LEDGER_CREATED)
        if self.is_serving:
            self.has_ledger, self.waits_for = True, None

    @precondition(lambda self: "create" in self.under_way)
    @rule()
    def ledger_fails(self) -> None:
        self.under_way.remove("create")
        self.on(Event.LEDGER_FAILED)
        if self.is_serving:
            self.must_wait, self.waits_for = False, None  # told, and the next one asks again

    @precondition(lambda self: "resume" in self.under_way)
    @rule()
    def resumed(self) -> None:
        self.under_way.remove("resume")
        self.on(Event.RECOVERED)
        if self.is_serving:
            self.has_ledger, self.waits_for = True, None

    @precondition(lambda self: "resume" in self.under_way)
    @rule()
    def resumed_by_loading(self) -> None:
        self.loaded("resume", has_ledger=False)

    @precondition(lambda self: "resume" in self.under_way)
    @rule()
    def resume_fails(self) -> None:
        self.under_way.remove("resume")
        self.on(Event.RESUME_FAILED)
        if self.is_serving:
            self.waits_for = "doubt"

    # --- rolling

    @precondition(lambda self: self.has_ledger and self.waits_for is None and self.is_serving)
    @rule()
    def overfull(self) -> None:
        self.on(Event.OVERFULL)
        self.waits_for = "next"

    @precondition(lambda self: self.has_ledger and self.waits_for is None and self.is_serving)
    @rule()
    def full(self) -> None:
        self.on(Event.FULL)
        self.waits_for = "pending"

    @rule()
    def next_ledger(self) -> None:
        self.on(Event.NEXT_CREATED)
        if self.waits_for == "next" and self.is_serving:
            self.waits_for = "pending"

    @rule()
    def no_next_ledger(self) -> None:
        self.on(Event.NEXT_FAILED)
        if self.waits_for == "next" and self.is_serving:
            self.waits_for = None

    @rule()
    def settled(self) -> None:
        self.on(Event.NONE_PENDING)
        if self.waits_for == "pending" and self.is_serving:
            self.waits_for = None

    # --- the end

    @precondition(lambda self: self.count >= self.may_end)
    @rule()
    def drain(self) -> None:
        self.on(Event.DRAIN)
        self.is_draining = True

    @precondition(lambda self: self.is_draining)
    @rule()
    def drained(self) -> None:
        self.on(Event.DRAINED)
        if not self.is_over:
            self.is_loaded = False

    @precondition(lambda self: self.count >= self.may_end)
    @rule(event=st.sampled_from([Event.DAMAGED, Event.CHAIN_LOST, Event.ABANDONED]))
    def end(self, event: Event) -> None:
        before = self.lifecycle.state
        self.on(event)
        self.is_over = True
        if event is not Event.DAMAGED and before is not State.DELETED:
            self.is_loaded = False

    @precondition(lambda self: self.count >= self.may_end and not self.under_way)
    @rule()
    def deleted(self) -> None:
        self.on(Event.DELETED)
        self.is_over = True

    # --- what must hold

    @invariant()
    def appends_wait_as_the_model_has_it(self) -> None:
        expected = not self.is_serving or self.waits_for is not None
        if self.lifecycle.state is State.EMPTY:
            return  # after an error that was told they may ask or wait: either way they ask
        assert self.must_wait == expected, (self.lifecycle.state, self.waits_for)

    @invariant()
    def readers_see_what_was_loaded(self) -> None:
        assert self.is_visible == self.is_loaded

    @invariant()
    def what_has_ended_stays_so(self) -> None:
        assert (self.lifecycle.state in {State.FAILED, State.DELETED}) == self.is_over


TestLifecycle = Model.TestCase
