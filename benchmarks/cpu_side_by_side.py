#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ds_train beside real DeepSpeed on this machine's CPU, in one run.

  start   from the start of the launcher (mpirun; torchrun) until the loss of the first optimizer step lies in a file:
          the tiny GPT-2, 2 ranks of one thread
  fp32,   tokens/s of GPT-2 6 x 384, context 256, batch 8, vocabulary 256, clipped AdamW: 1 rank of 2 threads,
  bf16    the median step of each run without its first two
  two     the same in fp32 on 2 ranks of one thread each; --stage chooses the ZeRO stage

Each round runs both systems once, the one right after the other, so that what else the machine does meets both. Printed
are the medians over the rounds, the range, and the median, least and largest of the rounds' ratios.

    python3 benchmarks/cpu_side_by_side.py build/bin/ds_train --peer VENV/bin/python

Without --peer, ds_train alone is measured. The peer's Python needs deepspeed, torch and transformers (and ninja on its
PATH: DeepSpeed builds its CPU operators at the first use, which an unmeasured round before the others pays for).
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parent
TINY_MODEL = SOURCE.parent / "tests" / "data" / "models" / "gpt2-tiny"
MODEL = {"n_layer": 6, "n_head": 6, "n_embd": 384, "n_positions": 256, "vocab_size": 256,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
CASES = ("start", "fp32", "bf16", "two")


def ranks(case):
    return 2 if case in ("start", "two") else 1


def deepspeed_config(case, stage):
    config = {
        "train_micro_batch_size_per_gpu": 4 if case == "start" else 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "steps_per_print": 100000,
    }
    if case == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def ours(case, options, folder):
    """(command, environment, the file that gets a line for each step)"""
    config = deepspeed_config(case, options.stage)
    start = case == "start"
    config["model"] = {"path": str(TINY_MODEL)} if start else {"type": "gpt2", **MODEL}
    data = folder / "data.txt"
    data.write_bytes(random.Random(0).randbytes(1 << 18))
    config["data"] = {"train": str(data), "tokenizer": "bytes", "sequence_length": 64 if start else 256}
    config["training"] = {"steps": 1 if start else options.steps, "output": str(folder / "run"), "save_every": 0,
                          "evaluate_every": 0, "resume": "never"}
    (folder / "config.json").write_text(json.dumps(config))
    command = [str(options.program), str(folder / "config.json")]
    if ranks(case) > 1:
        command = [*options.mpirun.split(), "-n", str(ranks(case)), *command]
    return command, folder / "run" / "metrics.jsonl"


def peer(case, options, folder):
    start = case == "start"
    task = {"model_folder": str(TINY_MODEL) if start else None, "model": MODEL, "steps": 1 if start else options.steps,
            "sequence_length": 64 if start else 256, "config": deepspeed_config(case, options.stage),
            "output": str(folder / "metrics.jsonl")}
    (folder / "task.json").write_text(json.dumps(task))
    command = [options.peer, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks(case)}",
               str(SOURCE / "cpu_side_by_side_peer.py"), str(folder / "task.json")]
    return command, folder / "metrics.jsonl"


def measure(system, case, options):
    """Seconds to the first step, or tokens/s."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command, metrics = system(case, options, folder)
        environment = dict(os.environ, OMP_NUM_THREADS=str(2 // ranks(case)), DS_ACCELERATOR="cpu",
                           HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        with open(folder / "log.txt", "w+") as log:
            began = time.monotonic()
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            seconds = None
            while process.poll() is None:
                if seconds is None and metrics.exists() and metrics.stat().st_size > 0:
                    seconds = time.monotonic() - began
                time.sleep(0.005 if seconds is None else 0.05)
            if process.returncode != 0 or not metrics.exists():
                log.seek(0)
                sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{log.read()[-3000:]}")
        if case == "start":
            return seconds
        steps = [json.loads(line)["step_ms"] for line in metrics.read_text().splitlines()]
        return ranks(case) * 8 * 256 * 1e3 / statistics.median(steps[2:])


def show(name, values, unit):
    print(f"  {name:12} {statistics.median(values):9.4g} {unit:9} ({min(values):.4g} to {max(values):.4g})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path, help="ds_train")
    parser.add_argument("--peer", help="a Python that has deepspeed, torch and transformers")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="steps of a tokens/s run")
    parser.add_argument("--stage", type=int, default=0, help="ZeRO stage of both")
    parser.add_argument("--mpirun", default="mpirun", help="with its options, for example 'mpirun --bind-to none'")
    options = parser.parse_args()
    options.program = options.program.resolve()

    for case in options.cases:
        unit, higher_is_better = ("s", False) if case == "start" else ("tokens/s", True)
        systems = {"ds_train": ours} | ({"DeepSpeed": peer} if options.peer else {})
        results = {name: [] for name in systems}
        for turn in range(-1, options.rounds):  # the first one warms caches and builds the peer's operators
            for name, system in systems.items():
                value = measure(system, case, options)
                if turn >= 0:
                    results[name].append(value)
        print(f"{case}: {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
        for name, values in results.items():
            show(name, values, unit)
        if options.peer:
            pairs = zip(results["ds_train"], results["DeepSpeed"])
            show("ratio", [a / b if higher_is_better else b / a for a, b in pairs], "times")


if __name__ == "__main__":
    main()
