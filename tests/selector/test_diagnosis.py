"""What is said of a start that gave no figure."""

from dataclasses import replace

import pytest

from aiak_tune.agent.records import Birth, SliceRecord, WindowRecord
from aiak_tune.selector.diagnosis import LINES, diagnose, last_lines
from aiak_tune.selector.launch import SLICE_OVER, Outcome

ENDED = Outcome(
    exit_code=0, results=(), births=(), torch_births=0, faults=(), tail="", duration_s=1.0
)
WINDOW = WindowRecord(wall_ns=10, steps=[[10, 0, 1, 1, 8]], mixed=0)
MEASURED = SliceRecord(
    rank=0, world_size=1, pid=1, status="complete", facts={}, environment={}, warmup_steps=4,
    window=WINDOW,
)  # fmt: skip


def _births(*versions: str) -> tuple[Birth, ...]:
    return tuple(Birth(pid, 1, version, "python x.py") for pid, version in enumerate(versions))


def _said(**changes: object) -> tuple[str, str]:
    problem = diagnose(replace(ENDED, **changes))  # type: ignore[arg-type]
    assert problem is not None
    return problem.code, problem.text


def test_a_measured_start_has_no_problem() -> None:
    assert diagnose(replace(ENDED, results=(MEASURED,))) is None
    killed = replace(ENDED, results=(MEASURED,), exit_code=-9, stopped=SLICE_OVER)
    assert diagnose(killed) is None


def test_a_job_that_failed_after_its_slice_was_measured() -> None:
    # torchrun calls it a failure when its ranks end before they should.
    assert diagnose(replace(ENDED, results=(MEASURED,), exit_code=1)) is None


def test_a_job_that_failed_within_its_slice_was_not() -> None:
    short = replace(MEASURED, status="short")
    code, text = _said(results=(short,), exit_code=1, tail="ValueError: x\n")
    assert (code, text) == ("crash", "the job ended with exit code 1: ValueError: x")


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ((), "no Python process of the job loaded the agent"),
        (("3.8", "3.9"), "the job runs Python 3.8, 3.9: it takes 3.10 or later"),
        (("3.9", "3.12"), "the job ended without importing torch"),
    ],
)
def test_who_never_imported_torch_is_told_apart(versions: tuple[str, ...], said: str) -> None:
    code, text = _said(births=_births(*versions))
    assert code == "launch"
    assert text.startswith(said)


def test_torch_without_a_step_is_another_thing() -> None:
    code, text = _said(births=_births("3.12"), torch_births=1)
    assert code == "launch"
    assert "no optimizer step was seen" in text


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("", "is it a training command"),
        ("batch forward", "it fetched batches, but took no gradient"),
        ("forward optimizer", "made an optimizer and called its model, but no gradient was taken"),
        ("backward", "gradients with backward and has no torch.optim optimizer"),
        ("gradient optimizer", "torch.autograd.grad and made an optimizer that never stepped"),
        ("marks backward", "the job has aiak_tune.step_done in its code, which was not called"),
    ],
)
def test_what_was_seen_is_the_reason(seen: str, said: str) -> None:
    text = _said(births=_births("3.12"), torch_births=1, seen=frozenset(seen.split()))[1]
    assert said in text


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out_of_memory"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator", "out_of_memory"),
        ("RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)",
         "out_of_memory"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error.", "out_of_memory"),
        ("OSError: [Errno 28] No space left on device: 'checkpoint.pt'", "crash"),
    ],
)  # fmt: skip
def test_memory_is_told_from_a_full_disk(tail: str, code: str) -> None:
    assert _said(exit_code=1, tail=tail)[0] == code


def test_a_short_job_says_how_far_it_came() -> None:
    short = replace(MEASURED, status="short", window=None, warmup_steps=3)
    code, text = _said(results=(short,))
    assert code == "launch"
    assert text.startswith("the job ended after 3 steps, before any could be counted")


def test_irregular_optimizers_are_said() -> None:
    code, text = _said(results=(replace(MEASURED, status="irregular"),))
    assert code == "incompatible"
    assert text.endswith("call aiak_tune.step_done(samples=n) where a step ends")


def test_our_own_fault_is_ours() -> None:
    code, text = _said(faults=("begin\nTraceback\n  x\nKeyError: 'a'\n",), stopped="fault")
    assert (code, text) == ("incompatible", "aiak-tune's agent failed in the job: KeyError: 'a'")


def test_what_to_do_comes_with_it() -> None:
    problem = diagnose(replace(ENDED, exit_code=1, tail="ValueError: x\n"))
    assert problem is not None
    assert problem.advice == (
        "the job ended with exit code 1: ValueError: x; it has to run by itself first: "
        "does the same command without aiak-tune?"
    )


def test_the_last_lines_have_no_secrets_and_no_end_of_their_own() -> None:
    text = "".join(f"line {n}\n\n" for n in range(100)) + "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\n"
    lines = last_lines(text).splitlines()
    assert len(lines) == LINES
    assert lines[0] == f"line {100 - LINES + 1}"
    assert "hf_abc" not in lines[-1]
