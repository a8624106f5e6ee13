"""A deterministic automaton made from a grammar's, state by state, while text is matched.

    table = Table(automaton)
    state = table.advance(table.start, b'{"a"')     # DEAD if no text of the grammar begins so
    table.is_accepting(state)

A state is a set of configurations (node, context). A context is a set of (node to return to,
context): all places that called a rule at the same position of the text, as in Earley's algorithm.
States and contexts are numbered, and equal ones have one number; so ambiguous grammars take
polynomial time, and loops and right recursion come back to the same state. A call whose rule ends
there too passes on its own context, so right recursion does not nest.

Transitions are computed at first use and kept. A table grows up to a limit of bytes; then
`TableFull` is raised, and the caller starts a new table with the states it needs (`adopt`). Work
per call and configurations per state are limited too (`GrammarError`). Not thread-safe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import inline_strict, jitted
from pyggml.compiler.pointers import i32_ptr, i64_ptr, u8_ptr

from ..errors import GrammarError
from .automaton import (
    ACCEPT,
    ACCEPT_NODE,
    CALL,
    CHAR,
    DIRECT,
    END,
    SPLIT,
    TAIL,
    TOKEN,
    Automaton,
)

DEAD = 0  # the state that no text reaches
MAX_CONFIGS = 8192  # of a state
MAX_TABLE_BYTES = 64 << 20
MAX_WORK = 30_000_000  # configurations and transitions of one call, below half a second
MAX_FREE = 16  # plain characters counted ahead
UNBOUNDED = 255  # any number of plain characters may follow
NO_MORE = 256  # flag: after that number of plain characters no plain character may follow

FULL, AMBIGUOUS, TOO_LONG = -2, -3, -4  # results instead of a state
ACCEPTING, NAMES_TOKENS = 1, 2  # flags of a state

# One array of int64 holds all sizes and addresses that the compiled code needs, at these indices.
(
    _N_CLASSES, _CLASS_OF, _KIND, _A, _B, _C, _TARGETS, _ROWS, _STARTS, _NULLABLE, _PLAIN,
    _N_STATES, _MAX_STATES, _TRANSITIONS, _FLAGS, _FREE, _KERNEL_AT, _ITEMS_AT,
    _N_POOL, _MAX_POOL, _POOL, _STATE_SLOTS, _STATE_MASK,
    _N_CONTEXTS, _MAX_CONTEXTS, _CONTEXT_AT, _N_PAIRS, _MAX_PAIRS, _PAIRS,
    _CONTEXT_SLOTS, _CONTEXT_MASK,
    _WORK, _KERNEL, _SEEN, _STAMP, _EPOCH, _GROUP, _TAILS,
    _CALL_HEAD, _CALL_PAIR, _CALL_NEXT, _N_CALLS, _PENDING, _N_WORDS,
    _DONE, _STACK, _N_HEADER,
) = range(47)  # fmt: skip
_MAX_CALLS = 4 * MAX_CONFIGS
_SEEN_SLOTS = 4 * MAX_CONFIGS
_LOW = 0xFFFFFFFF
_MULTIPLIER = 0x1E3779B97F4A7C15

ADVANCE, INTERN_STATE, INTERN_CONTEXT, TOKEN_STEP, FREE, WALK = range(6)


@inline_strict
def _hash(values, n):  # type: ignore[no-untyped-def]
    mixed = n
    for i in range(n):
        mixed = (mixed ^ values[i]) * _MULTIPLIER
        mixed ^= (mixed >> 32) & _LOW
    return mixed & 0x7FFFFFFF


@inline_strict
def _sort_distinct(keys, n):  # type: ignore[no-untyped-def]
    """Sort and remove duplicates; returns how many are left."""
    gap = n // 2
    while gap > 0:
        for i in range(gap, n):
            key, j = keys[i], i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 2
    kept = 0
    for i in range(n):
        if kept == 0 or keys[i] != keys[kept - 1]:
            keys[kept] = keys[i]
            kept += 1
    return kept


@inline_strict
def _intern_context(h, values, n):  # type: ignore[no-untyped-def]
    """The number of a context with these pairs, sorted and distinct."""
    slots, mask = i32_ptr(h[_CONTEXT_SLOTS]), h[_CONTEXT_MASK]
    at, pairs = i64_ptr(h[_CONTEXT_AT]), i64_ptr(h[_PAIRS])
    slot = _hash(values, n) & mask
    while slots[slot] >= 0:
        context = slots[slot]
        first = at[context]
        if at[context + 1] - first == n:
            same = True
            for i in range(n):
                if pairs[first + i] != values[i]:
                    same = False
                    break
            if same:
                return np.int64(context)
        slot = (slot + 1) & mask
    context = h[_N_CONTEXTS]
    first = h[_N_PAIRS]
    if context >= h[_MAX_CONTEXTS] or first + n > h[_MAX_PAIRS]:
        return np.int64(FULL)
    for i in range(n):
        pairs[first + i] = values[i]
    slots[slot] = context
    at[context + 1] = first + n
    h[_N_PAIRS] = first + n
    h[_N_CONTEXTS] = context + 1
    return np.int64(context)


@inline_strict
def _add(h, work, n, key):  # type: ignore[no-untyped-def]
    """Append a configuration that is not there yet; returns how many there are, or AMBIGUOUS."""
    seen, stamp, epoch = i64_ptr(h[_SEEN]), i64_ptr(h[_STAMP]), h[_EPOCH]
    slot = ((key * _MULTIPLIER) >> 30) & (_SEEN_SLOTS - 1)
    while stamp[slot] == epoch:
        if seen[slot] == key:
            return n
        slot = (slot + 1) & (_SEEN_SLOTS - 1)
    if n >= MAX_CONFIGS:
        return np.int64(AMBIGUOUS)
    stamp[slot] = epoch
    seen[slot] = key
    work[n] = key
    return n + 1


@inline_strict
def _record_call(h, rule, pair):  # type: ignore[no-untyped-def]
    """Note that a rule is called from a place; False if there are too many calls."""
    n = h[_N_CALLS]
    if n >= _MAX_CALLS:
        return False
    heads, pairs, following = i32_ptr(h[_CALL_HEAD]), i64_ptr(h[_CALL_PAIR]), i32_ptr(h[_CALL_NEXT])
    pending = i64_ptr(h[_PENDING])
    word = rule >> 6
    if not (pending[word] >> (rule & 63)) & 1:
        pending[word] |= np.int64(1) << (rule & 63)
        heads[rule] = -1
    pairs[n] = pair
    following[n] = heads[rule]
    heads[rule] = n
    h[_N_CALLS] = n + 1
    return True


@inline_strict
def _next_pending(h):  # type: ignore[no-untyped-def]
    """Remove and return the first rule that was called, -1 if there is none."""
    pending = i64_ptr(h[_PENDING])
    for word in range(h[_N_WORDS]):
        if pending[word] != 0:
            for bit in range(64):
                if (pending[word] >> bit) & 1:
                    pending[word] ^= np.int64(1) << bit
                    return np.int64(64 * word + bit)
    return np.int64(-1)


@inline_strict
def _close(h, n_kernel, items):  # type: ignore[no-untyped-def]
    """Write all configurations with a byte or token step that a kernel reaches without one.

    First everything is followed that has consumed text: calls that ended return to their contexts.
    Then rules are entered, callers first, so that a rule's context is whole before it is entered.

    Returns the number of items and the flags, or a negative code.
    """
    kind, a, b, targets = i32_ptr(h[_KIND]), i32_ptr(h[_A]), i32_ptr(h[_B]), i32_ptr(h[_TARGETS])
    at, pairs, nullable = i64_ptr(h[_CONTEXT_AT]), i64_ptr(h[_PAIRS]), i32_ptr(h[_NULLABLE])
    work, kernel, group = i64_ptr(h[_WORK]), i64_ptr(h[_KERNEL]), i64_ptr(h[_GROUP])
    call_next, call_pair = i32_ptr(h[_CALL_NEXT]), i64_ptr(h[_CALL_PAIR])
    h[_EPOCH] += 1
    h[_N_CALLS] = 0
    flags, n_items, n, i = 0, 0, np.int64(0), 0
    for k in range(n_kernel):
        n = _add(h, work, n, kernel[k])
    rule = np.int64(-1)
    failed = np.int64(0)
    while True:
        while i < n:
            node, context = work[i] >> 32, work[i] & _LOW
            what = kind[node]
            if what in (CHAR, TAIL, TOKEN):
                items[n_items] = work[i]
                n_items += 1
                if what == TOKEN:
                    flags |= NAMES_TOKENS
            elif what == SPLIT:
                for t in range(a[node], a[node] + b[node]):
                    n = _add(h, work, n, (np.int64(targets[t]) << 32) | context)
                    if n < 0:
                        break
            elif what == CALL:
                called, after = np.int64(a[node]), np.int64(b[node])
                recorded = True
                if kind[after] == END:
                    for p in range(at[context], at[context + 1]):
                        recorded = recorded and _record_call(h, called, pairs[p])
                else:
                    recorded = _record_call(h, called, (after << 32) | context)
                if not recorded:
                    n = np.int64(AMBIGUOUS)
                elif nullable[called]:
                    n = _add(h, work, n, (after << 32) | context)
            elif what == END:
                if rule < 0:  # else nothing was consumed, and the caller went on already
                    for p in range(at[context], at[context + 1]):
                        n = _add(h, work, n, pairs[p])
                        if n < 0:
                            break
            elif what == ACCEPT:
                flags |= ACCEPTING
            if n < 0:
                failed = n
                break
            i += 1
        if failed < 0:
            break
        rule = _next_pending(h)
        if rule < 0:
            break
        entry = np.int64(i32_ptr(h[_CALL_HEAD])[rule])
        n_group = 0
        while entry >= 0:
            group[n_group] = call_pair[entry]
            n_group += 1
            entry = np.int64(call_next[entry])
        context = _intern_context(h, group, _sort_distinct(group, n_group))
        if context >= 0:
            n = _add(h, work, n, (np.int64(i32_ptr(h[_STARTS])[rule]) << 32) | context)
        failed = min(context, n)
        if failed < 0:
            break
        failed = np.int64(0)
    h[_DONE] += n_items + h[_N_CALLS] + i
    if failed < 0:
        pending = i64_ptr(h[_PENDING])
        for word in range(h[_N_WORDS]):
            pending[word] = 0
        return failed
    return np.int64(n_items) * 4 + flags


@inline_strict
def _intern_state(h, n):  # type: ignore[no-untyped-def]
    """The state of the first ``n`` configurations of the work memory, or a negative code."""
    kind, at, pairs = i32_ptr(h[_KIND]), i64_ptr(h[_CONTEXT_AT]), i64_ptr(h[_PAIRS])
    work, kernel = i64_ptr(h[_WORK]), i64_ptr(h[_KERNEL])
    i, n_kernel = 0, 0
    while i < n:
        if kind[work[i] >> 32] == END:
            context = work[i] & _LOW
            for p in range(at[context], at[context + 1]):
                n = _add(h, work, n, pairs[p])
                if n < 0:
                    return n
        else:
            kernel[n_kernel] = work[i]
            n_kernel += 1
        i += 1
    h[_DONE] += i
    if n_kernel == 0:
        return np.int64(DEAD)
    n_kernel = _sort_distinct(kernel, n_kernel)
    slots, mask = i32_ptr(h[_STATE_SLOTS]), h[_STATE_MASK]
    kernel_at, items_at, pool = i64_ptr(h[_KERNEL_AT]), i64_ptr(h[_ITEMS_AT]), i64_ptr(h[_POOL])
    slot = _hash(kernel, n_kernel) & mask
    while slots[slot] >= 0:
        state = slots[slot]
        first = kernel_at[state]
        if items_at[state] - first == n_kernel:
            same = True
            for k in range(n_kernel):
                if pool[first + k] != kernel[k]:
                    same = False
                    break
            if same:
                return np.int64(state)
        slot = (slot + 1) & mask
    state, first = h[_N_STATES], h[_N_POOL]
    if state >= h[_MAX_STATES] or first + n_kernel + MAX_CONFIGS > h[_MAX_POOL]:
        return np.int64(FULL)
    for k in range(n_kernel):
        pool[first + k] = kernel[k]
    items = first + n_kernel
    closed = _close(h, n_kernel, i64_ptr(h[_POOL] + 8 * items))
    if closed < 0:
        return closed
    slots[slot] = state
    items_at[state] = items
    kernel_at[state + 1] = items + (closed >> 2)
    i32_ptr(h[_FLAGS])[state] = closed & 3
    i32_ptr(h[_FREE])[state] = -1
    n_classes, transitions = h[_N_CLASSES], i32_ptr(h[_TRANSITIONS])
    for c in range(n_classes):
        transitions[state * n_classes + c] = -1
    h[_N_POOL] = items + (closed >> 2)
    h[_N_STATES] = state + 1
    return state


@inline_strict
def _transition(h, state, c):  # type: ignore[no-untyped-def]
    """Compute the transition of a state by a class of bytes."""
    if h[_DONE] > MAX_WORK:
        return np.int64(TOO_LONG)
    n_classes, rows = h[_N_CLASSES], i32_ptr(h[_ROWS])
    kind, a, b = i32_ptr(h[_KIND]), i32_ptr(h[_A]), i32_ptr(h[_B])
    at, pairs, pool = i64_ptr(h[_CONTEXT_AT]), i64_ptr(h[_PAIRS]), i64_ptr(h[_POOL])
    work, group, tails = i64_ptr(h[_WORK]), i64_ptr(h[_GROUP]), i64_ptr(h[_TAILS])
    first, last = i64_ptr(h[_ITEMS_AT])[state], i64_ptr(h[_KERNEL_AT])[state + 1]
    h[_EPOCH] += 1
    h[_DONE] += last - first + 4
    n, n_tails = np.int64(0), 0
    for i in range(first, last):
        node, context = pool[i] >> 32, pool[i] & _LOW
        value = np.int64(rows[np.int64(a[node]) * n_classes + c])
        if value == 0 or kind[node] == TOKEN:
            continue
        if kind[node] == TAIL:
            n = _add(h, work, n, (value << 32) | context)
        elif value == DIRECT:
            n = _add(h, work, n, (np.int64(b[node]) << 32) | context)
        else:
            tails[n_tails] = i
            n_tails += 1
        if n < 0:
            return n
    # the first byte of longer characters: one context for each tail
    done = 0
    while done < n_tails:
        node = pool[tails[done]] >> 32
        tail = np.int64(rows[np.int64(a[node]) * n_classes + c])
        n_group, kept = 0, done
        for j in range(done, n_tails):
            node, context = pool[tails[j]] >> 32, pool[tails[j]] & _LOW
            if rows[np.int64(a[node]) * n_classes + c] != tail:
                tails[kept] = tails[j]
                kept += 1
                continue
            if kind[b[node]] == END:
                if n_group + at[context + 1] - at[context] > _MAX_CALLS:
                    return np.int64(AMBIGUOUS)
                for p in range(at[context], at[context + 1]):
                    group[n_group] = pairs[p]
                    n_group += 1
            else:
                if n_group >= _MAX_CALLS:
                    return np.int64(AMBIGUOUS)
                group[n_group] = (np.int64(b[node]) << 32) | context
                n_group += 1
        h[_DONE] += n_tails - done
        n_tails = kept
        context = _intern_context(h, group, _sort_distinct(group, n_group))
        if context < 0:
            return context
        n = _add(h, work, n, (tail << 32) | context)
        if n < 0:
            return n
    found = _intern_state(h, n)
    if found < 0:
        return found
    transitions = i32_ptr(h[_TRANSITIONS])
    transitions[state * n_classes + c] = found
    if last - first <= 16:  # other classes with the same steps have the same result
        for other in range(n_classes):
            if transitions[state * n_classes + other] < 0:
                same = True
                for i in range(first, last):
                    row = np.int64(a[pool[i] >> 32]) * n_classes
                    if rows[row + c] != rows[row + other]:
                        same = False
                        break
                if same:
                    transitions[state * n_classes + other] = found
    return found


@inline_strict
def _next(h, state, c):  # type: ignore[no-untyped-def]
    """The state after one more byte, by its class."""
    found = np.int64(i32_ptr(h[_TRANSITIONS])[state * h[_N_CLASSES] + c])
    if found >= 0:
        return found
    return np.int64(_transition(h, state, c))


@inline_strict
def _advance(h, state, text, n):  # type: ignore[no-untyped-def]
    class_of, text = u8_ptr(h[_CLASS_OF]), u8_ptr(text)
    for i in range(n):
        state = _next(h, state, np.int64(class_of[text[i]]))
        if state <= 0:
            break
    return state


@inline_strict
def _after_plain(h, state):  # type: ignore[no-untyped-def]
    """The one state after any plain character; DEAD if there is none, or not only one."""
    plan = i32_ptr(h[_PLAIN])
    result = np.int64(-1)
    at = 1
    for _ in range(plan[0]):  # kinds of characters: their bytes' classes, byte by byte
        n_bytes = plan[at]
        at += 1
        only = state
        many0, many1, many2 = np.int64(-1), np.int64(-1), np.int64(-1)
        n_now = 1
        many0 = only
        for _ in range(n_bytes):
            n_classes = plan[at]
            at += 1
            next0, next1, next2 = np.int64(-1), np.int64(-1), np.int64(-1)
            n_next = 0
            for which in range(n_now):
                source = many0 if which == 0 else (many1 if which == 1 else many2)
                for i in range(n_classes):
                    found = _next(h, source, np.int64(plan[at + i]))
                    if found <= 0:
                        return found
                    if found != next0 and found != next1 and found != next2:
                        if n_next == 0:
                            next0 = found
                        elif n_next == 1:
                            next1 = found
                        elif n_next == 2:
                            next2 = found
                        else:
                            return np.int64(DEAD)
                        n_next += 1
            at += n_classes
            many0, many1, many2, n_now = next0, next1, next2, n_next
        if n_now != 1 or (result >= 0 and result != many0):
            return np.int64(DEAD)
        result = many0
    return result


@inline_strict
def _no_plain(h, state):  # type: ignore[no-untyped-def]
    """NO_MORE if no plain character begins in a state, else 0."""
    plan = i32_ptr(h[_PLAIN])
    at = 1
    for _ in range(plan[0]):
        n_bytes = plan[at]
        at += 1
        for byte in range(n_bytes):
            n_classes = plan[at]
            at += 1
            if byte == 0:
                for i in range(n_classes):
                    found = _next(h, state, np.int64(plan[at + i]))
                    if found < 0:
                        return found
                    if found != DEAD:
                        return np.int64(0)
            at += n_classes
    return np.int64(NO_MORE)


@inline_strict
def _free(h, state):  # type: ignore[no-untyped-def]
    """How many plain characters may follow, all alike, up to MAX_FREE, or UNBOUNDED.

    With the flag NO_MORE if exactly so many, as before the end of a bounded string.
    """
    free = i32_ptr(h[_FREE])
    n = np.int64(0)
    at = state
    while True:
        if free[at] == UNBOUNDED:
            n = np.int64(UNBOUNDED)
            break
        if free[at] >= 0:
            n += free[at]  # with its flag
            if n & (NO_MORE - 1) > MAX_FREE:
                n = np.int64(MAX_FREE)
            break
        if n == MAX_FREE:
            break
        following = _after_plain(h, at)
        if following < 0:
            return following
        if following == at:
            n = np.int64(UNBOUNDED)
            break
        if following == DEAD:
            last = _no_plain(h, at)
            if last < 0:
                return last
            free[at] = last
            n += last
            break
        n += 1
        at = following
    free[state] = n
    return n


@inline_strict
def _walk(h, state, tree, n, mask):  # type: ignore[no-untyped-def]
    """Set the bits of the tokens of a prefix tree that may follow; 0, or a negative code."""
    tree, mask, stack = i32_ptr(tree), i32_ptr(mask), i32_ptr(h[_STACK])
    n_classes, class_of = h[_N_CLASSES], u8_ptr(h[_CLASS_OF])
    transitions = i32_ptr(h[_TRANSITIONS])
    stack[0] = state
    at = np.int64(0)
    while at < n:
        entry = 4 * at
        depth = tree[entry + 1] >> 8
        c = class_of[tree[entry + 1] & 255]
        source = np.int64(stack[depth])
        found = np.int64(transitions[source * n_classes + c])
        if found < 0:
            found = np.int64(_transition(h, source, np.int64(c)))
            if found < 0:
                return found
        if found == DEAD:
            at = np.int64(tree[entry])
            continue
        stack[depth + 1] = found
        token = np.int64(tree[entry + 2])
        if token >= 0:
            mask[token >> 5] |= np.int64(1) << (token & 31)
        at += 1
    return np.int64(0)


@jitted(types.int64(*[types.int64] * 6))
def _run(header, operation, a, b, c, d):  # type: ignore[no-untyped-def]
    h = i64_ptr(header)
    if operation == ADVANCE:  # state, text, length
        return np.int64(_advance(h, a, b, c))
    if operation == FREE:  # state
        return np.int64(_free(h, a))
    if operation == WALK:  # state, tree, length, mask
        return np.int64(_walk(h, a, b, c, d))
    given = i64_ptr(a)
    if operation == INTERN_CONTEXT:  # pairs, number
        group = i64_ptr(h[_GROUP])
        for i in range(b):
            group[i] = given[i]
        return np.int64(_intern_context(h, group, _sort_distinct(group, b)))
    # configurations, number
    h[_EPOCH] += 1
    n = np.int64(0)
    for i in range(b):
        n = _add(h, i64_ptr(h[_WORK]), n, given[i])
        if n < 0:
            return n
    return np.int64(_intern_state(h, n))


class TableFull(GrammarError):
    """A table has reached its limit of bytes; start a new one."""


class Table:
    """The states of an automaton that were visited, and what is known of them.

    Args:
        automaton: the grammar.
        max_depth: number of bytes of the longest text in a prefix tree.
        max_bytes: limit of the states' memory.
    """

    def __init__(
        self, automaton: Automaton, max_depth: int = 1024, max_bytes: int = MAX_TABLE_BYTES
    ) -> None:
        self.automaton = automaton
        self._max_bytes = max_bytes
        n_rules = automaton.starts.size
        n_words = (n_rules + 63) // 64
        # memory that is not touched costs nothing
        self._arrays: dict[int, NDArray[Any]] = {
            _CLASS_OF: automaton.class_of,
            _KIND: automaton.kind,
            _A: automaton.a,
            _B: automaton.b,
            _C: automaton.c,
            _TARGETS: automaton.targets,
            _ROWS: automaton.rows,
            _STARTS: automaton.starts,
            _NULLABLE: automaton.nullable,
            _PLAIN: _plain_plan(automaton.class_of),
            _WORK: np.empty(MAX_CONFIGS, np.int64),
            _KERNEL: np.empty(MAX_CONFIGS, np.int64),
            _SEEN: np.empty(_SEEN_SLOTS, np.int64),
            _STAMP: np.zeros(_SEEN_SLOTS, np.int64),
            _GROUP: np.empty(_MAX_CALLS, np.int64),
            _TAILS: np.empty(MAX_CONFIGS, np.int64),
            _CALL_HEAD: np.empty(n_rules, np.int32),
            _CALL_PAIR: np.empty(_MAX_CALLS, np.int64),
            _CALL_NEXT: np.empty(_MAX_CALLS, np.int32),
            _PENDING: np.zeros(n_words, np.int64),
            _STACK: np.empty(max_depth + 2, np.int32),
        }
        self._header = np.zeros(_N_HEADER, np.int64)
        self._header[_N_CLASSES], self._header[_N_WORDS] = automaton.n_classes, n_words
        self._address = self._header.ctypes.data
        self._sizes = {
            _MAX_STATES: 1024,
            _MAX_POOL: 1 << 16,
            _MAX_CONTEXTS: 1024,
            _MAX_PAIRS: 1 << 16,
        }
        self._allocate()
        self._header[_N_STATES] = 1  # DEAD
        self._arrays[_KERNEL_AT][:2] = self._arrays[_ITEMS_AT][0] = 0
        self._arrays[_FLAGS][0] = self._arrays[_CONTEXT_AT][0] = 0
        bottom = self._intern(INTERN_CONTEXT, [ACCEPT_NODE << 32])
        first = int(automaton.starts[automaton.root])
        self.start = self._intern(INTERN_STATE, [(first << 32) | bottom])

    @property
    def n_states(self) -> int:
        """Number of states, including DEAD."""
        return int(self._header[_N_STATES])

    def advance(self, state: int, text: bytes) -> int:
        """The state after a text; DEAD if none of the grammar's texts goes on so.

        Raises:
            TableFull: the table cannot hold the states.
            GrammarError: too many configurations.
        """
        buffer = np.frombuffer(text, np.uint8)
        return self.run(ADVANCE, state, buffer.ctypes.data, len(text))

    def is_accepting(self, state: int) -> bool:
        """Whether the text so far is one of the grammar's."""
        return bool(self._arrays[_FLAGS][state] & ACCEPTING)

    def names_tokens(self, state: int) -> bool:
        """Whether the grammar names tokens that may come next."""
        return bool(self._arrays[_FLAGS][state] & NAMES_TOKENS)

    def symbols(self, state: int) -> list[int]:
        """Indices of the automaton's tokens that may come next."""
        nodes = self._items(state) >> 32
        nodes = nodes[self.automaton.kind[nodes] == TOKEN]
        return sorted(set(self.automaton.c[nodes].tolist()))

    def after_token(self, state: int, symbols: list[int], text_state: int) -> int:
        """The state after a token that matches these of the automaton's tokens, and as text.

        Args:
            state: the state before the token.
            symbols: indices of the automaton's tokens that match.
            text_state: the state after the token's text.
        """
        items = self._items(state)
        nodes = items >> 32
        named = (self.automaton.kind[nodes] == TOKEN) & np.isin(self.automaton.c[nodes], symbols)
        after = self.automaton.b[nodes[named]].astype(np.int64) << 32 | (items[named] & _LOW)
        configs = [*self._kernel(text_state).tolist(), *after.tolist()]
        return self._intern(INTERN_STATE, configs) if configs else DEAD

    def adopt(self, other: Table, state: int) -> int:
        """The state of another table of the same automaton, in this one."""
        kernel = other._kernel(state).tolist()
        at, pairs = other._arrays[_CONTEXT_AT], other._arrays[_PAIRS]
        contexts: set[int] = set()
        todo = [config & _LOW for config in kernel]
        while todo:
            context = todo.pop()
            if context not in contexts:
                contexts.add(context)
                todo += (pairs[at[context] : at[context + 1]] & _LOW).tolist()
        number = {0: 0}

        def renumbered(configs: list[int]) -> list[int]:
            return [(config >> 32 << 32) | number[config & _LOW] for config in configs]

        for context in sorted(contexts - {0}):  # contexts come after those in their pairs
            inner = renumbered(pairs[at[context] : at[context + 1]].tolist())
            number[context] = self._intern(INTERN_CONTEXT, inner)
        return self._intern(INTERN_STATE, renumbered(kernel)) if kernel else DEAD

    def run(self, operation: int, a: int, b: int = 0, c: int = 0, d: int = 0) -> int:
        """Run an operation of the compiled code, with as much memory as it needs.

        Raises:
            TableFull, GrammarError: as `advance`.
        """
        self._header[_DONE] = 0
        while True:
            result: int = _run(self._address, operation, a, b, c, d)
            if result >= 0:
                return result
            if result == FULL:
                self._grow()
                continue
            most = f"{MAX_WORK} steps for one token"
            if result == AMBIGUOUS:
                most = f"{MAX_CONFIGS} ways to read a text"
            raise GrammarError(
                f"the grammar is too ambiguous: more than {most}; "
                "remove alternatives and repetitions that match the same text"
            )

    def _intern(self, operation: int, values: list[int]) -> int:
        if len(values) > MAX_CONFIGS and operation == INTERN_STATE:
            raise GrammarError(f"the grammar is too ambiguous: more than {MAX_CONFIGS} ways")
        array = np.array(values, np.int64)
        return self.run(operation, array.ctypes.data, array.size)

    def _kernel(self, state: int) -> NDArray[np.int64]:
        arrays = self._arrays
        return arrays[_POOL][arrays[_KERNEL_AT][state] : arrays[_ITEMS_AT][state]]

    def _items(self, state: int) -> NDArray[np.int64]:
        arrays = self._arrays
        return arrays[_POOL][arrays[_ITEMS_AT][state] : arrays[_KERNEL_AT][state + 1]]

    def _grow(self) -> None:
        """Double what is half full."""
        header, sizes = self._header, self._sizes
        used = {
            _MAX_STATES: _N_STATES, _MAX_POOL: _N_POOL,
            _MAX_CONTEXTS: _N_CONTEXTS, _MAX_PAIRS: _N_PAIRS,
        }  # fmt: skip
        grown = {
            size: n * 2 if 2 * int(header[used[size]]) >= n else n for size, n in sizes.items()
        }
        n_bytes = grown[_MAX_STATES] * (4 * self.automaton.n_classes + 40) + 8 * grown[_MAX_POOL]
        n_bytes += 24 * grown[_MAX_CONTEXTS] + 8 * grown[_MAX_PAIRS]
        if n_bytes > self._max_bytes:
            raise TableFull(
                f"the grammar needs more than {self._max_bytes >> 20} MB of states; simplify it"
            )
        self._sizes = grown
        self._allocate()

    def _allocate(self) -> None:
        """Allocate all that grows, with the old contents."""
        header, sizes = self._header, self._sizes
        n_states, n_contexts = sizes[_MAX_STATES], sizes[_MAX_CONTEXTS]
        growing: dict[int, tuple[int, Any]] = {
            _TRANSITIONS: (n_states * self.automaton.n_classes, np.int32),
            _FLAGS: (n_states, np.int32),
            _FREE: (n_states, np.int32),
            _KERNEL_AT: (n_states + 1, np.int64),
            _ITEMS_AT: (n_states + 1, np.int64),
            _POOL: (sizes[_MAX_POOL], np.int64),
            _CONTEXT_AT: (n_contexts + 1, np.int64),
            _PAIRS: (sizes[_MAX_PAIRS], np.int64),
        }
        for which, (size, dtype) in growing.items():
            old = self._arrays.get(which)
            if old is None or old.size != size:
                new = np.empty(size, dtype)
                if old is not None:
                    new[: old.size] = old
                self._arrays[which] = new
        # the slots of all states and contexts, by their hash
        for slots, mask, size in (
            (_STATE_SLOTS, _STATE_MASK, 2 * n_states),
            (_CONTEXT_SLOTS, _CONTEXT_MASK, 2 * n_contexts),
        ):
            self._arrays[slots] = np.full(size, -1, np.int32)
            header[mask] = size - 1
        for which, array in self._arrays.items():
            header[which] = array.ctypes.data
        for which, size in sizes.items():
            header[which] = size
        _rehash(self._address)


@jitted(types.void(types.int64))
def _rehash(header):  # type: ignore[no-untyped-def]
    """Enter all states and contexts in empty slots."""
    h = i64_ptr(header)
    slots, mask = i32_ptr(h[_STATE_SLOTS]), h[_STATE_MASK]
    first, last, values = i64_ptr(h[_KERNEL_AT]), i64_ptr(h[_ITEMS_AT]), h[_POOL]
    for state in range(1, h[_N_STATES]):
        slot = _hash(i64_ptr(values + 8 * first[state]), last[state] - first[state]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = state
    slots, mask = i32_ptr(h[_CONTEXT_SLOTS]), h[_CONTEXT_MASK]
    at, values = i64_ptr(h[_CONTEXT_AT]), h[_PAIRS]
    for context in range(h[_N_CONTEXTS]):
        first_pair = at[context]
        slot = _hash(i64_ptr(values + 8 * first_pair), at[context + 1] - first_pair) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = context


# first bytes and their following bytes of all characters of several bytes
_LONGER = (
    ((0xC2, 0xDF), (0x80, 0xBF)),
    ((0xE0, 0xE0), (0xA0, 0xBF), (0x80, 0xBF)),
    ((0xE1, 0xEC), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xED, 0xED), (0x80, 0x9F), (0x80, 0xBF)),
    ((0xEE, 0xEF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF0, 0xF0), (0x90, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF1, 0xF3), (0x80, 0xBF), (0x80, 0xBF), (0x80, 0xBF)),
    ((0xF4, 0xF4), (0x80, 0x8F), (0x80, 0xBF), (0x80, 0xBF)),
)
PLAIN_ASCII = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')


def _plain_plan(class_of: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The classes of the bytes of plain characters, for `_after_plain`."""
    longer = [[[*range(low, high + 1)] for low, high in ranges] for ranges in _LONGER]
    kinds = [[[*PLAIN_ASCII]], *longer]
    plan = [len(kinds)]
    for kind in kinds:
        plan.append(len(kind))
        for values in kind:
            classes = np.unique(class_of[values]).tolist()
            plan += [len(classes), *classes]
    return np.array(plan, np.int32)
