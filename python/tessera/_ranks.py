"""Ranks as threads of this process, and this process as a rank."""

import atexit
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

import torch

from tessera import _C
from tessera._random import continue_stream, given_seed, stream_of_program

T = TypeVar("T")
_of_thread = threading.local()  # the saves of its rank that are under way, and whether its job is imagined


def remember_save(saving):
    """Until forget_save, a failure of this rank gives it up."""
    if not hasattr(_of_thread, "saves"):
        _of_thread.saves = weakref.WeakSet()
    _of_thread.saves.add(saving)


def forget_save(saving):
    """It is whole."""
    getattr(_of_thread, "saves", set()).discard(saving)


def _give_up_saves():
    """This rank has failed: nobody waits for what others were to write."""
    for saving in getattr(_of_thread, "saves", ()):
        saving.give_up()


_collecting = threading.Lock()
_jobs_of_threads = []  # that run; the first has whether garbage was collected before it


@contextlib.contextmanager
def _no_collection(ranks):
    """Python collects no garbage by itself while several ranks are threads: it visits every tensor, also those that other ranks change at that moment, which
    they do without the interpreter's lock."""
    if ranks < 2:
        yield
        return
    with _collecting:
        _jobs_of_threads.append(gc.isenabled() or any(_jobs_of_threads))
        gc.disable()
    try:
        yield
    finally:
        with _collecting:
            was_enabled = _jobs_of_threads.pop()
            if not _jobs_of_threads and was_enabled:
                gc.enable()


def _verify_given(name, body, ranks):
    if not callable(body) or not hasattr(ranks, "__index__"):
        raise TypeError(f"[{name}] body={body!r}, ranks={ranks!r}; accepted: a function and how many ranks run it, as in {name}(body, 4)")


@overload
def run_ranks(body: Callable[..., T], ranks: int, *, args: Sequence[Any] = (), results: Literal["first"] = "first", deadline: float = 60.0,
              grace: float = 60.0) -> T: ...
@overload
def run_ranks(body: Callable[..., T], ranks: int, *, args: Sequence[Any] = (), results: Literal["all"], deadline: float = 60.0, grace: float = 60.0) -> list[T]: ...
def run_ranks(body: Callable[..., T], ranks: int, *, args: Sequence[Any] = (), results: Literal["first", "all"] = "first", deadline: float = 60.0,
              grace: float = 60.0) -> T | list[T]:
    """Runs `body(*args)` on `ranks` threads, each a rank, and returns what rank 0 returned; with results="all" what each returned, by rank.

    A rank that waits `deadline` seconds for the others throws. When one raises, the others are woken, and its exception is
    raised here, with its traceback and a note that says which rank it was. Ctrl-C raises KeyboardInterrupt on every rank, and
    here once all have ended: a rank that sleeps wakes up first. The second Ctrl-C says where they are, the third kills the process.

    A rank in one call that does not return hears of none of this: `grace` seconds after the failure, or the first Ctrl-C, the process
    ends, and says on stderr what failed and where the ranks are. 0: it waits for them.

    Each rank draws the random numbers that the program would draw next (tessera.set_generator); the program's own generator stays where it is.

    With several ranks Python's own garbage collection is off meanwhile: what is garbage in cycles stays until the job ends. A program that makes much of
    it calls gc.collect() on one rank while the others wait in a collective.
    """
    _verify_given("run_ranks", body, ranks)
    if results not in ("first", "all"):
        raise ValueError(f'[run_ranks] results={results!r}; accepted: "first", what rank 0 returned, and "all", a list by rank')
    raised, returned = [], {}
    stream = stream_of_program()

    def of_rank():
        try:
            continue_stream(stream)
            value = body(*args)
            if results == "all" or rank() == 0:
                returned[rank()] = value
        except BaseException as error:
            raised.append((error, rank()))
            _give_up_saves()
            raise

    try:
        with _no_collection(ranks):
            _C.run_ranks(of_rank, ranks, deadline, grace)
        return returned[0] if results == "first" else [returned[i] for i in sorted(returned)]
    except BaseException as error:  # the note is not for the other ranks, whose errors quote this one
        for of_one, number in raised if sys.version_info >= (3, 11) else ():
            if of_one is error:
                error.add_note(f"(raised by rank {number} of {ranks})")
        raise
    finally:
        raised.clear()


def run_fake(body: Callable[[], T], ranks: int, *, rank: int = 0) -> T:
    """Runs `body()` as `rank` of an imagined job of `ranks` on the calling thread, and returns what it returned.

    Collectives succeed at once and move nothing, so values that others would have sent are not there. For plans, ledgers and
    the cost of operators on a mesh of any size.
    """
    _verify_given("run_fake", body, ranks)
    stream = stream_of_program()

    def of_rank() -> T:
        _of_thread.is_imagined = True
        try:
            continue_stream(stream)
            return body()
        finally:
            _of_thread.is_imagined = False

    return _C.run_fake(of_rank, ranks, rank)


def is_imagined() -> bool:
    """Whether the others of this rank's job are: what collectives would bring from them is not there."""
    return getattr(_of_thread, "is_imagined", False)


def join(group: "torch.distributed.ProcessGroup | None" = None, *, deadline: float = 60.0) -> None:
    """Makes this process a rank of the job that its launcher started (torchrun, mpirun, srun, tessera launch), until it ends.

    `group` is a process group of torch.distributed over all ranks; if that is initialised already, its world is taken. Called by
    whatever needs a rank first. A collective then waits `deadline` seconds for the others. After torch.manual_seed the rank goes on with
    the program's random numbers, which all ranks must have drawn alike; unseeded, with those of one seed.
    """
    if _C.in_rank():
        return
    stream = stream_of_program()
    c10d = torch.distributed
    if group is None and c10d.is_available() and c10d.is_initialized():
        group = c10d.group.WORLD
    if group is None:
        _C.join_launched(deadline)
    else:
        _C.join_group(group, c10d.distributed_c10d._world.pg_map[group][1], deadline)
    if given_seed() is not None:
        continue_stream(stream)
    else:
        _C.set_generator("stock")
    atexit.register(_leave)


def _leave():
    """An exception that ended the program reaches the other ranks. What ended this rank while it waited for them gets a line."""
    error = getattr(sys, "last_value", None)
    if error:
        _give_up_saves()
    try:
        _C.leave(f"{type(error).__name__}: {error}" if error else None)
    except RuntimeError as failure:
        print(f"tessera: {failure}", file=sys.stderr)


def in_rank() -> bool:
    """Whether this thread or process is a rank: one that run_ranks made, or that a launcher started."""
    ensure_rank()
    return _C.in_rank()


def rank() -> int:
    """The rank that this thread or process is."""
    ensure_rank()
    return _C.rank()


def world_size() -> int:
    """How many ranks the job has."""
    ensure_rank()
    return _C.world_size()


def ensure_rank() -> None:
    """Joins the launcher's job, if there is one and nobody has yet."""
    if not _C.in_rank() and (_C.is_launched() or torch.distributed.is_available() and torch.distributed.is_initialized()):
        join()
