"""What a job is called, over the ways in which people start one."""

import shlex

import pytest

from aiak_tune.selector.job import job_facts
from aiak_tune.selector.job_name import job_name

NAMES = {
    "python train.py --lr 0.1": "train.py",
    "python -u -W ignore /home/me/project/train.py --config other.py": "train.py",
    "/opt/env/bin/python3.12 train": "train",
    "python -X dev experiments/first/": "first",
    "./train.py": "train.py",
    "bash scripts/run.sh 8 fast": "run.sh",
    "./run.sh": "run.sh",
    'sh -c "cd project && exec python train.py --lr 0.1"': "train.py",
    'bash -lc "source env && yolo train"': "bash -c",
    'bash -c "echo it\'s"': "bash -c",
    "python -m pkg.train --config conf.py": "pkg.train",
    "python -u -m pkg resnet50 none": "pkg",
    "python -c 'import torch' none": "python -c",
    "python": "python",
    "torchrun --nproc-per-node 8 train.py name=run": "train.py",
    "torchrun --nproc-per-node=2 -m pkg.train": "pkg.train",
    "torchrun --standalone --module pkg.train": "pkg.train",
    "python -m torch.distributed.run --nproc-per-node 2 train.py --out last": "train.py",
    "python -m torch.distributed.run -m pkg.train": "pkg.train",
    "accelerate launch --num_processes 2 sft.py --report_to none": "sft.py",
    "accelerate launch -m pkg.train none": "pkg.train",
    "deepspeed --num_gpus=2 train.py --deepspeed ds.json": "train.py",
    "trl sft --model_name_or_path gpt2 --report_to none": "trl sft",
    "/opt/env/bin/trl dpo --config dpo.yaml": "trl dpo",
    "yolo detect train data=coco8.yaml epochs=3 name=run": "yolo detect train",
    "yolo task=detect mode=train name=run": "yolo",
    "yolo train cfg=x.py": "yolo train",
    "axolotl train config.yml": "axolotl train",
    "nnUNetv2_train 1 3d_fullres 0": "nnUNetv2_train",
    "fairseq-train data-bin/wikitext --arch lstm": "fairseq-train",
    "lightning": "lightning",
    "env CUDA_VISIBLE_DEVICES=0 OMP_NUM_THREADS=4 yolo train name=run": "yolo train",
    "nice -n 5 timeout 10m trl sft --x none": "trl sft",
    "uv run --frozen trl sft --x none": "trl sft",
    "uv run python -m pkg.train": "pkg.train",
    "srun --ntasks 4 python train.py": "train.py",
    "env A=1": "env",
}


@pytest.mark.parametrize(("command", "name"), NAMES.items())
def test_a_job_is_called_by_what_it_runs(command: str, name: str) -> None:
    assert job_name(shlex.split(command)) == name


def test_a_name_holds_no_secret_and_is_short() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    assert secret not in job_facts(("python", f"{secret}", "x")).name
    assert len(job_name(("python", "a" * 500 + ".py"))) == 60


@pytest.mark.parametrize("words", [("-",), ("", ""), ("python", "-m"), ("env", "-i"), ("/",)])
def test_odd_commands_have_a_name_too(words: tuple[str, ...]) -> None:
    assert isinstance(job_name(words), str)
